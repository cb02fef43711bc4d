(* Taking a step back by arithmetic: where it fails, and where it is exact. *)

From Coq Require Import ZArith Reals List Lia Lra.
From Flocq Require Import Core IEEE754.BinarySingleNaN IEEE754.Binary IEEE754.Bits.
Require Import Stream.
Import ListNotations.
Open Scope Z_scope.

(* --- where it fails --------------------------------------------------------------------------------------------- *)

(* Where MeZO's walk x + z - 2z + z ends, and where it began, for x = 1 and z = m 2^e. Real numbers bring it back. *)
Definition walk precision emax prec less (m e : Z) :=
  let num m e := BinarySingleNaN.binary_normalize precision emax prec less mode_NE m e false in
  let plus := BinarySingleNaN.Bplus mode_NE in
  let last := plus (plus (plus (num 1 0) (num m e)) (BinarySingleNaN.Bopp (num (2 * m) e))) (num m e) in
  (BinarySingleNaN.B2SF last, BinarySingleNaN.B2SF (num 1 0)).

(* It ends a unit below 1, for z = 3/2048 in bfloat16 and 3/2^27 in float32. *)
Example bfloat16_does_not_come_back : let (last, first) := walk 8 128 eq_refl eq_refl 3 (-11) in last <> first.
Proof. vm_compute. discriminate. Qed.

Example float32_does_not_come_back : let (last, first) := walk 24 128 eq_refl eq_refl 3 (-27) in last <> first.
Proof. vm_compute. discriminate. Qed.

(* The directions of a step are added in their order: in another the sum has other bits. *)
Example order_counts :
  bits (add (add one (scaled 1 (-24))) (scaled 1 (-23))) <> bits (add (add one (scaled 1 (-23))) (scaled 1 (-24))).
Proof. vm_compute. discriminate. Qed.

(* And float32 is not float32 with a fused multiply-add: fl(1 + c z) rounds once where the stream rounds twice. *)
Example a_fused_step_differs :
  let c := scaled 8388611 (-23) in
  bits (add (neg one) (mul c c)) <> bits (scaled (8388611 * 8388611 - 2 ^ 46) (-46)).
Proof. vm_compute. discriminate. Qed.

(* --- where it is exact: on a grid ------------------------------------------------------------------------------- *)

Open Scope R_scope.
Notation fexp := (FLT_exp (-149) 24).
Notation rnd := (Generic_fmt.round radix2 fexp ZnearestE).
Local Instance precision24 : Prec_gt_0 24 := eq_refl.

Section Grid.
Variable exponent : Z. (* the grid's q is 2^exponent *)
Hypothesis representable : (-149 <= exponent)%Z.
Definition q : R := bpow radix2 exponent.

Lemma multiples_are_float32 : forall k, (Z.abs k <= 2 ^ 24)%Z -> generic_format radix2 fexp (IZR k * q).
Proof.
  intros k H. destruct (Z.eq_dec (Z.abs k) (2 ^ 24)) as [E | E].
  - assert (P : generic_format radix2 fexp (bpow radix2 (exponent + 24))).
    { apply generic_format_FLT_bpow; [reflexivity | lia]. }
    assert (V : bpow radix2 (exponent + 24) = IZR (2 ^ 24) * q)
      by (rewrite bpow_plus; unfold q; simpl (bpow radix2 24); simpl; ring).
    rewrite V in P. assert (K : k = (2 ^ 24)%Z \/ k = (- 2 ^ 24)%Z) by lia. destruct K as [-> | ->]; [exact P |].
    rewrite opp_IZR, Ropp_mult_distr_l_reverse. now apply generic_format_opp.
  - apply generic_format_FLT. exists (Float radix2 k exponent); simpl; [reflexivity | lia | lia].
Qed.

(* A step on the grid, and back: to the bit. *)
Theorem grid_comes_back : forall x u, (Z.abs x <= 2 ^ 23)%Z -> (Z.abs u <= 2 ^ 22)%Z ->
  rnd (IZR x * q + IZR u * q) = IZR (x + u) * q /\ rnd (rnd (IZR x * q + IZR u * q) - IZR u * q) = IZR x * q.
Proof.
  intros x u X U.
  assert (S : rnd (IZR x * q + IZR u * q) = IZR (x + u) * q).
  { rewrite <- Rmult_plus_distr_r, <- plus_IZR. apply round_generic; [typeclasses eauto |].
    apply multiples_are_float32. lia. }
  split; [exact S |]. rewrite S, <- Rmult_minus_distr_r, <- minus_IZR. replace (x + u - u)%Z with x by lia.
  apply round_generic; [typeclasses eauto |]. apply multiples_are_float32. lia.
Qed.

(* Adding 1.5 2^23 q and taking it off again puts a step on the grid: what is left is a multiple of q. *)
Theorem a_step_is_put_on_the_grid : forall u, Rabs u <= IZR (2 ^ 22) * q ->
  exists k, rnd (rnd (u + IZR (3 * 2 ^ 22) * q) - IZR (3 * 2 ^ 22) * q) = IZR k * q /\ (Z.abs k <= 2 ^ 22)%Z.
Proof.
  intros u U. assert (Q : 0 < q) by apply bpow_gt_0. apply Rabs_le_inv in U.
  set (y := rnd (u + IZR (3 * 2 ^ 22) * q)).
  assert (B : IZR (2 ^ 23) * q <= y <= IZR (2 ^ 24) * q).
  { assert (keeps : forall k, (Z.abs k <= 2 ^ 24)%Z -> rnd (IZR k * q) = IZR k * q)
      by (intros; apply round_generic; [typeclasses eauto | now apply multiples_are_float32]).
    unfold y. split; [rewrite <- (keeps (2 ^ 23)%Z) by lia | rewrite <- (keeps (2 ^ 24)%Z) by lia];
    apply round_le; try typeclasses eauto; simpl in *; lra. }
  assert (G : generic_format radix2 fexp y) by (apply generic_format_round; typeclasses eauto).
  assert (K : exists n, y = IZR n * q).
  { destruct (Req_dec y (IZR (2 ^ 24) * q)) as [E | E]; [now exists (2 ^ 24)%Z |].
    unfold generic_format in G. exists (Ztrunc (scaled_mantissa radix2 fexp y)). rewrite G at 1. unfold F2R.
    simpl Fnum. simpl Fexp. f_equal. unfold q. f_equal. unfold cexp.
    assert (M : mag radix2 y = (exponent + 24)%Z :> Z).
    { apply mag_unique_pos. rewrite !bpow_plus. fold q.
      replace (exponent + 24 - 1)%Z with (exponent + 23)%Z by lia. rewrite bpow_plus. fold q.
      simpl (bpow radix2 23). simpl (bpow radix2 24). simpl in B, E. lra. }
    rewrite M. unfold FLT_exp. lia. }
  destruct K as [n N].
  assert (L : (2 ^ 23 <= n <= 2 ^ 24)%Z).
  { rewrite N in B. destruct B as [B0 B1]. split; apply le_IZR; apply Rmult_le_reg_r with q; assumption. }
  exists (n - 3 * 2 ^ 22)%Z. split; [| lia].
  fold y. rewrite N, <- Rmult_minus_distr_r, <- minus_IZR. apply round_generic; [typeclasses eauto |].
  apply multiples_are_float32. lia.
Qed.

End Grid.

Print Assumptions grid_comes_back.
Print Assumptions a_step_is_put_on_the_grid.
