"""Whether an English word at the start of a text is a verb, by a list, where IFBench takes nltk's trained tagger."""

from __future__ import annotations

import re

_VERBS = """
accept achieve act adapt add address adjust admit adopt advise agree aim allow analyze announce answer appear apply
appreciate approach arrange arrive ask assess assign assist assume attach attempt attend avoid bake balance be
become begin believe boil book boost borrow break breathe bring brush build buy calculate call capture care carry
catch celebrate change charge check choose claim clarify clean clear click close collect combine come communicate
compare complete compose compute conduct confirm connect consider construct consult contact contain continue
contribute control convert cook copy cover craft create cultivate cut dance decide declare decrease dedicate deepen
define delete deliver demonstrate derive describe design determine develop discover discuss display dive divide do
download draft draw dream drink drive drop earn eat edit educate embark embrace empower enable encourage engage
enhance enjoy ensure enter establish estimate evaluate examine execute exercise expand expect experience experiment
explain explore express extend face fall feel fight figure fill find finish fix focus fold follow force forget form
foster gather generate get give go grab grow guide handle happen have hear heat help hide highlight hire hold hope
identify ignore illustrate imagine implement import improve include incorporate increase indulge inform initialize
insert inspect inspire install integrate introduce invest investigate invite involve join jump keep know launch lead
learn leave let leverage list listen live locate look lose love maintain make manage master maximize mean measure
meet minimize mix modify monitor motivate move multiply navigate need note notice observe obtain offer open optimize
order organize overcome pack paint pay perform pick picture plan plant play ponder practice praise prepare present
press prevent print prioritize process produce promote propose protect prove provide pull purchase push put raise
reach read realize recall receive recognize recommend record reduce refer refine reflect regard relax release remain
remember remind remove repeat replace reply report represent request require research resolve respect respond rest
restore retrieve return reveal review revise ride rise run save say schedule search see seek seem select sell send
separate serve set shake shape share shift show simplify simulate sing sit sketch sleep smile solve sort speak
specify spend split stand start state stay step stick stir stop store strengthen study submit substitute subtract
succeed suggest summarize support suppose surround take talk teach tell test thank think throw train transform
translate travel treat try turn unite understand unleash unlock update upgrade use utilize validate verify view
visit visualize wait wake walk want wash watch wear welcome win wonder work worry write yield
""".split()
_IRREGULAR = """
am is are was were been being has had having does did done became become began begun broke broken brought built
bought caught chose chosen came cut drew drawn dreamt drank driven drove ate eaten fell fallen felt fought found
forgot forgotten gave given got gotten went gone grew grown had heard hid hidden held kept knew known led left let
lost made meant met paid put read ran said saw seen sought sold sent set shook sang sat slept spoke spoken spent
split stood stuck took taken taught told thought threw thrown understood woke wore worn won wrote written
""".split()
_NOT_VERBS = frozenset(
    "during nothing something anything everything morning evening ceiling wedding darling sibling herring building "
    "pudding stocking earring".split()
)
_DOUBLED = re.compile(r"[^aeiou][aeiou][bdglmnprt]\Z")


def _forms(verb: str) -> set[str]:
    """A verb with -s, -ing and -ed."""
    stem = verb.removesuffix("e") if not verb.endswith(("ee", "be")) else verb
    if _DOUBLED.search(verb) and len(verb) < 5:
        stem = verb + verb[-1]
    ending = re.search(r"[^aeiou]y\Z", verb)
    third = (
        f"{verb[:-1]}ies" if ending else f"{verb}es" if verb.endswith(("s", "sh", "ch", "x", "z", "o")) else f"{verb}s"
    )
    past = f"{verb[:-1]}ied" if ending else f"{stem}ed"
    return {verb, third, f"{stem}ing", past}


_FORMS = frozenset(_IRREGULAR).union(*map(_forms, _VERBS))


def is_verb(word: str) -> bool:
    """Return whether the word is a form of one of some 400 verbs, or ends with -ing; case does not count."""
    word = word.lower()
    return word in _FORMS or (len(word) > 6 and word.endswith("ing") and word not in _NOT_VERBS)
