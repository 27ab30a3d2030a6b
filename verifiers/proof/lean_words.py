"""Words that a block of Lean tactics has no use for."""

# What begins or belongs to a command of Lean, Batteries or Mathlib. Most are tokens, which no variable can be named by.
COMMANDS = frozenset(
    """abbrev add_decl_doc alias assert_not_exists assert_not_imported attribute axiom binder_predicate
    builtin_dsimproc builtin_dsimproc_decl builtin_initialize builtin_simproc builtin_simproc_decl class
    class_abbrev coinductive coinductive_fixpoint compile_def compile_inductive constant declare_aesop_rule_sets
    declare_bitwise_int_theorems declare_command_config_elab declare_config_elab declare_config_getter
    declare_int_theorems declare_simp_like_tactic declare_sint_simprocs declare_syntax_cat declare_uint_theorems
    decreasing_by def deprecate deprecated_module deriving docs_to_verso dsimproc dsimproc_decl elab elab_rules
    elab_stx_quot end erase_aesop_rules example export expose extend_docs extern finally gen_injective_theorems
    grind_pattern import include inductive inductive_fixpoint infix infixl infixr init_grind_norm
    init_quot initialize initialize_simps_projections instance irreducible_def lemma library_note local macro
    macro_rules meta mk_iff_of_inductive_prop mutual namespace noncomputable nonrec notation notation3 omit opaque
    open partial partial_fixpoint postfix prefix prelude private proof_wanted protected public
    recommended_spelling register_builtin_option register_error_explanation register_hint register_label_attr
    register_option register_parser_alias register_simp_attr register_tactic_tag register_try_tactic run_cmd
    run_elab run_meta scoped seal section set_library_suggestions set_option set_premise_selector
    show_panel_widgets simproc simproc_decl simproc_pattern structure suppress_compilation syntax
    tactic_extension termination_by termination_by? theorem unif_hint universe unsafe unseal
    unset_option unsuppress_compilation variable where whatsnew
    add_aesop_rules count_heartbeats guard_min_heartbeats lrat_proof recall test_extern with_weak_namespace""".split()
)
# Tactics that leave a goal unproved, trust compiled code, or ask a server.
TACTICS = frozenset("admit stop native slim_check plausible polyrith".split())
# Terms that leave a goal unproved, trust compiled code, or run programs; wherever they stand in a name.
REFUSED = frozenset(
    """sorry sorryAx native_decide nativeDecide ofReduceBool ofReduceNat reduceBool reduceNat
    trustCompiler bv_decide bv_check bv_omega_nat implemented_by csimp run_tac run_conv by_elab elabTermEnsuringType
    include_str include_bytes dbg_trace dbgTrace dbgTraceVal dbgSleep dbgStackTrace evalExpr evalConst unsafeCast
    unsafeIO unsafeBaseIO unsafeEIO lcProof lcUnreachable lcAny ptrAddrUnsafe skipKernelTC CommandElabM TacticM
    TermElabM MetaM CoreM IO BaseIO EIO
    Rlvr RlvrTrusted RlvrSolution RlvrCheck""".split()
)
# Namespaces of Lean's own implementation.
NAMESPACES = frozenset({"Lean", "Elab", "Lake", "System", "Mathlib", "Batteries", "Qq", "Aesop"})
