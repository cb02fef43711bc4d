(* Whatever the words are, an element of a Gaussian direction is a number, and no larger than 5.7683. *)

From Coq Require Import ZArith Reals Lia Lra Psatz.
From Flocq Require Import Core Relative IEEE754.BinarySingleNaN IEEE754.Binary IEEE754.Bits.
From Interval Require Import Tactic.
Require Import Stream.
Open Scope R_scope.

Notation value := (B2R 24 128).
Notation finite := (is_finite 24 128).
Notation fexp := (FLT_exp (-149) 24).
Notation rnd := (round radix2 fexp ZnearestE).
Local Instance precision : Prec_gt_0 24 := eq_refl.

(* --- one operation ---------------------------------------------------------------------------------------------- *)

(* Bounds that float32 has: what is rounded stays within them. *)
Definition bound (n : Z) : R := IZR n / 262144.
Definition fits (n : Z) := (Z.abs n < 2 ^ 24)%Z.
Definition within (x : float32) (lo hi : Z) := finite x = true /\ bound lo <= value x <= bound hi.

Lemma bound_is_float32 : forall n, fits n -> generic_format radix2 fexp (bound n).
Proof.
  intros n H. replace (bound n) with (F2R (Float radix2 n (-18))) by (unfold bound, F2R; simpl; lra).
  apply generic_format_FLT. exists (Float radix2 n (-18)); simpl; [reflexivity | exact H | lia].
Qed.

Lemma rounded : forall r lo hi, fits lo -> fits hi -> bound lo <= r <= bound hi ->
  bound lo <= rnd r <= bound hi /\ Rlt_bool (Rabs (rnd r)) (bpow radix2 128) = true.
Proof.
  intros r lo hi Hlo Hhi [H1 H2].
  assert (B : bound lo <= rnd r <= bound hi).
  { rewrite <- (round_generic radix2 fexp ZnearestE (bound lo)) by now apply bound_is_float32.
    rewrite <- (round_generic radix2 fexp ZnearestE (bound hi)) by now apply bound_is_float32.
    split; apply round_le; (assumption || typeclasses eauto). }
  split; [exact B |]. apply Rlt_bool_true, Rle_lt_trans with 64; [| simpl; lra]. unfold bound, fits in *.
  assert (L : (- 2 ^ 24 <= lo /\ hi <= 2 ^ 24)%Z) by lia. destruct L as [L1 L2]. apply IZR_le in L1, L2.
  simpl in *. apply Rabs_le. lra.
Qed.

Lemma add_within : forall x y lo hi, finite x = true -> finite y = true -> fits lo -> fits hi ->
  bound lo <= value x + value y <= bound hi -> within (add x y) lo hi /\ value (add x y) = rnd (value x + value y).
Proof.
  intros x y lo hi Hx Hy Hlo Hhi H. destruct (rounded _ lo hi Hlo Hhi H) as [B L].
  pose proof (Bplus_correct 24 128 eq_refl eq_refl binop_nan_pl32 mode_NE x y Hx Hy) as E.
  fold (add x y) (b32_plus mode_NE x y) in E. change (SpecFloat.fexp 24 128) with fexp in E. simpl round_mode in E.
  rewrite L in E. destruct E as [V [F _]]. unfold within, add, b32_plus in *. rewrite V. tauto.
Qed.

Lemma mul_within : forall x y lo hi, finite x = true -> finite y = true -> fits lo -> fits hi ->
  bound lo <= value x * value y <= bound hi -> within (mul x y) lo hi /\ value (mul x y) = rnd (value x * value y).
Proof.
  intros x y lo hi Hx Hy Hlo Hhi H. destruct (rounded _ lo hi Hlo Hhi H) as [B L].
  pose proof (Bmult_correct 24 128 eq_refl eq_refl binop_nan_pl32 mode_NE x y) as E.
  change (SpecFloat.fexp 24 128) with fexp in E. simpl round_mode in E.
  rewrite L, Hx, Hy in E. destruct E as [V [F _]]. unfold within, mul, b32_mult in *. rewrite V. tauto.
Qed.

Lemma root_within : forall x lo hi, finite x = true -> 0 <= value x -> fits lo -> fits hi ->
  bound lo <= sqrt (value x) <= bound hi -> within (root x) lo hi.
Proof.
  intros x lo hi Hx Hp Hlo Hhi H. destruct (rounded _ lo hi Hlo Hhi H) as [B _].
  pose proof (Bsqrt_correct 24 128 eq_refl eq_refl unop_nan_pl32 mode_NE x) as [V [F _]].
  unfold within, root, b32_sqrt. rewrite V, F. split; [| exact B].
  destruct x as [| | | [|] m e Hb]; try discriminate; try reflexivity.
  exfalso. simpl in Hp. assert (F2R (Float radix2 (Z.neg m) e) < 0) by now apply F2R_lt_0. lra.
Qed.

Lemma neg_value : forall x, finite (neg x) = finite x /\ value (neg x) = - value x.
Proof. intros x. split; [apply is_finite_Bopp | apply B2R_Bopp]. Qed.

(* An integer of at most 24 bits, times a power of two, is a float32. *)
Lemma scaled_exactly : forall n e, fits n -> (-149 <= e <= 0)%Z ->
  finite (scaled n e) = true /\ value (scaled n e) = IZR n * bpow radix2 e.
Proof.
  intros n e Hn He. unfold scaled, fits in *.
  pose proof (binary_normalize_correct 24 128 eq_refl eq_refl mode_NE n e false) as E.
  change (SpecFloat.fexp 24 128) with fexp in E. simpl round_mode in E.
  rewrite round_generic, Rlt_bool_true in E; try typeclasses eauto; [tauto | |].
  - unfold F2R. simpl Fnum. simpl Fexp.
    rewrite Rabs_mult, <- abs_IZR, (Rabs_pos_eq (bpow radix2 e)) by apply bpow_ge_0.
    assert (0 < bpow radix2 e <= 1) by (split; [apply bpow_gt_0 | change 1 with (bpow radix2 0); apply bpow_le; lia]).
    assert (A : (0 <= Z.abs n <= 2 ^ 24)%Z) by lia. destruct A as [A1 A2]. apply IZR_le in A1, A2. simpl in *.
    apply Rle_lt_trans with 16777216; [nra | lra].
  - apply generic_format_FLT. exists (Float radix2 n e); simpl; (reflexivity || lia).
Qed.

(* The value of a constant, as a quotient of integers. *)
Lemma value_of : forall x s m e, B2FF 24 128 x = F754_finite s m e -> (e < 0)%Z ->
  finite x = true /\ value x = IZR (cond_Zopp s (Zpos m)) / IZR (2 ^ (- e)).
Proof.
  intros x s m e H He. split; [now destruct x |].
  rewrite <- FF2R_B2FF, H. simpl. unfold F2R, Rdiv. simpl. f_equal.
  rewrite <- (Z.opp_involutive e) at 1. rewrite bpow_opp. f_equal. symmetry. apply (IZR_Zpower radix2). lia.
Qed.

Ltac constant c F V :=
  lazymatch eval vm_compute in (B2FF 24 128 c) with F754_finite ?s ?m ?e =>
    let n := eval vm_compute in (cond_Zopp s (Zpos m)) in
    let k := eval vm_compute in (2 ^ (- e))%Z in
    assert (F : finite c = true /\ value c = IZR n / IZR k)
      by (apply (value_of c s m e); [vm_compute; reflexivity | reflexivity]);
    destruct F as [F V]
  end.

Lemma minus_one_value : finite (neg one) = true /\ value (neg one) = -1.
Proof. destruct (neg_value one) as [-> ->]. constant one F V. rewrite F, V. split; [reflexivity | lra]. Qed.

Opaque add mul root neg scaled decimal.

(* --- Horner's steps --------------------------------------------------------------------------------------------- *)

(* With a precision that is named it computes with integers, and not with the machine's floating point. *)
Ltac exactly := unfold within, bound in *; interval with (i_prec 40).

Lemma horner_step : forall total x c lo hi lo' hi', finite total = true -> finite x = true -> finite c = true ->
  fits lo -> fits hi -> fits lo' -> fits hi' -> bound lo <= value total * value x <= bound hi ->
  (forall r, bound lo <= r <= bound hi -> bound lo' <= r + value c <= bound hi') ->
  within (add (mul total x) c) lo' hi'.
Proof.
  intros total x c lo hi lo' hi' Ht Hx Hc A1 A2 B1 B2 H K.
  destruct (mul_within total x lo hi Ht Hx A1 A2 H) as [[F W] _].
  now destruct (add_within _ c lo' hi' F Hc B1 B2 (K _ W)).
Qed.

(* The step with the constant c, after one of which B is known: bounds of the product, and of the sum. *)
Ltac step c B lo hi lo' hi' :=
  let F := fresh in let Fc := fresh in let Vc := fresh in let G := fresh in
  constant c Fc Vc; destruct B as [F B];
  lazymatch type of F with finite ?total = true =>
    lazymatch goal with X : bound _ <= value ?x <= bound _, Fx : finite ?x = true |- context [horner _ ?x] =>
      assert (G : within (add (mul total x) c) lo' hi')
        by (refine (horner_step total x c lo hi lo' hi' F Fx Fc eq_refl eq_refl eq_refl eq_refl _ _);
            [exactly | intros r R; rewrite Vc; unfold bound in *; lra])
    end
  end;
  clear F B Fc Vc; rename G into B.

(* The logarithm's polynomial: near -2. *)
Lemma log_polynomial : forall x, within x (-76784) 108587 -> within (horner LOG_Q x) (-620387) (-388388).
Proof.
  intros x [Fx X]. constant (decimal (-244219363) 9) F V.
  assert (B : within (decimal (-244219363) 9) (-64021) (-64020)) by (split; [exact F | rewrite V; unfold bound; lra]).
  clear F V.
  step (decimal 375654489 9) B (-26521)%Z 18754%Z 71953%Z 117231%Z.
  step (decimal (-409095138) 9) B (-34339)%Z 48562%Z (-141582)%Z (-58678)%Z.
  step (decimal 497935861 9) B (-58649)%Z 41472%Z 71880%Z 172004%Z.
  step (decimal (-666320562) 9) B (-50383)%Z 71250%Z (-225056)%Z (-103420)%Z.
  step (decimal 1000028010 9) B (-93226)%Z 65922%Z 168924%Z 328075%Z.
  step (decimal (-2000001670) 9) B (-96097)%Z 135899%Z (-620387)%Z (-388388)%Z.
  exact B.
Qed.

Lemma cosine_polynomial : forall x, within x 0 262144 -> within (horner COS_T x) (-61268) 262146.
Proof.
  intros x [Fx X]. constant (decimal 870188756 12) F V.
  assert (B : within (decimal 870188756 12) 228 229) by (split; [exact F | rewrite V; unfold bound; lra]).
  clear F V.
  step (decimal (-208331067) 10) B (-1)%Z 230%Z (-5464)%Z (-5230)%Z.
  step (decimal 25366348 8) B (-5465)%Z 1%Z 61030%Z 66499%Z.
  step (decimal (-123370039) 8) B (-1)%Z 66500%Z (-323410)%Z (-256906)%Z.
  step (decimal 1 0) B (-323411)%Z 1%Z (-61268)%Z 262146%Z.
  exact B.
Qed.

(* --- the angle -------------------------------------------------------------------------------------------------- *)

Definition is_word (w : Z) := (0 <= w < 2 ^ 32)%Z.

Lemma with_odd_bit : forall n lo hi, (lo <= n < hi -> Z.even hi = true -> lo <= Z.lor n 1 < hi)%Z.
Proof.
  intros n lo hi H E. assert (L : Z.lor n 1 = if Z.odd n then n else (n + 1)%Z).
  { destruct n as [| [p | p |] | [p | p |]]; try reflexivity. simpl. now destruct p. }
  rewrite L. destruct (Z.odd n) eqn:O; [lia |].
  assert (n + 1 <> hi)%Z; [| lia]. intros <-. rewrite Z.even_add, <- Z.negb_odd, O in E. discriminate.
Qed.

Lemma shifted : forall n k lo hi, (0 <= k -> lo * 2 ^ k <= n < hi * 2 ^ k -> lo <= Z.shiftr n k < hi)%Z.
Proof.
  intros n k lo hi K H. rewrite Z.shiftr_div_pow2 by exact K. assert (0 < 2 ^ k)%Z by (apply Z.pow_pos_nonneg; lia).
  split; [apply Z.div_le_lower_bound | apply Z.div_lt_upper_bound]; lia.
Qed.

Lemma turn_within : forall w, is_word w -> finite (turn w) = true /\ -1 <= value (turn w) <= 1.
Proof.
  intros w [H0 H1]. unfold turn.
  assert (N : (- 2 ^ 23 <= Z.lor (Z.shiftr (signed w) 8) 1 < 2 ^ 23)%Z).
  { apply with_odd_bit; [| reflexivity]. apply shifted; [lia |]. unfold signed.
    destruct (Z.ltb_spec w (2 ^ 31)); lia. }
  destruct (scaled_exactly (Z.lor (Z.shiftr (signed w) 8) 1) (-23)) as [F V]; [unfold fits; lia | lia |].
  split; [exact F |]. rewrite V. change (bpow radix2 (-23)) with (/ 8388608).
  destruct N as [A B]. apply IZR_le in A. apply IZR_lt in B. simpl in A, B. lra.
Qed.

Lemma square_within : forall t, finite t = true -> -1 <= value t <= 1 ->
  within (mul t t) 0 262144 /\ value (mul t t) = rnd (value t * value t).
Proof. intros t F T. apply mul_within; try assumption; try reflexivity. unfold bound. nra. Qed.

Lemma cosine_within : forall w, is_word w -> within (cosine w) (-262148) 262148.
Proof.
  intros w H. destruct (turn_within w H) as [F T]. destruct (square_within _ F T) as [U _].
  destruct (cosine_polynomial _ U) as [K C]. unfold cosine, within.
  destruct (neg_value (horner COS_T (mul (turn w) (turn w)))) as [N M].
  destruct (Z.odd w); [rewrite N, M |]; split; try exact K; unfold bound in *; lra.
Qed.

(* A result below 2 is rounded by less than 2^-22. *)
Definition small (d : R) := -1/4194304 <= d <= 1/4194304.

Lemma rounded_near : forall r, -2 <= r <= 2 -> small (rnd r - r).
Proof.
  intros r H.
  destruct (error_N_FLT radix2 (-149) 24 ltac:(lia) (fun n => negb (Z.even n)) r) as [eps [eta [E1 [E2 [_ E]]]]].
  rewrite E. simpl in E1, E2. assert (A : Rabs eps <= /16777216 /\ Rabs eta <= /16777216) by lra.
  destruct A as [A1 A2]. apply Rabs_le_inv in A1, A2. unfold small. nra.
Qed.

(* A step of Horner's in exact numbers, and what its two operations add. *)
Lemma step_error : forall total x c, finite total = true -> finite x = true -> finite c = true ->
  -1 <= value total * value x <= 1 -> -1 <= value total * value x + value c <= 1.999 ->
  exists d d', small d /\ small d' /\ finite (add (mul total x) c) = true
    /\ value (add (mul total x) c) = value total * value x + d + value c + d'.
Proof.
  intros total x c Ft Fx Fc P S.
  destruct (mul_within total x (-262144) 262144 Ft Fx eq_refl eq_refl) as [[F _] V]; [unfold bound; lra |].
  pose proof (rounded_near (value total * value x) ltac:(lra)) as D. rewrite <- V in D.
  destruct (add_within (mul total x) c (-524288) 524288 F Fc eq_refl eq_refl) as [[G _] W];
    [unfold bound, small in *; lra |].
  pose proof (rounded_near (value (mul total x) + value c) ltac:(unfold small in *; lra)) as E. rewrite <- W in E.
  exists (value (mul total x) - value total * value x), (value (add (mul total x) c) - (value (mul total x) + value c)).
  split; [exact D | split; [exact E | split; [exact G | lra]]].
Qed.

(* The sine's polynomial in exact numbers, and what each of the eight operations adds. *)
Lemma sine_polynomial : forall t d0 d1 d2 d3 d4 d5 d6 d7 c0 c1 c2 c3, -1 <= t <= 1 ->
  small d0 -> small d1 -> small d2 -> small d3 -> small d4 -> small d5 -> small d6 -> small d7 ->
  -0.0043710257 <= c0 <= -0.0043710255 -> 0.0795006640 <= c1 <= 0.0795006700 ->
  -0.6459260100 <= c2 <= -0.6459259800 -> 1.5707951100 <= c3 <= 1.5707952400 ->
  Rabs (t * ((((c0 * (t * t + d0) + d1 + c1 + d2) * (t * t + d0) + d3 + c2 + d4) * (t * t + d0) + d5 + c3 + d6)) + d7)
  <= 1.00001.
Proof. unfold small. intros. interval with (i_prec 40, i_bisect t, i_taylor t, i_depth 14). Qed.

Lemma sine_within : forall w, is_word w -> within (sine w) (-262148) 262148.
Proof.
  intros w H. destruct (turn_within w H) as [F T]. unfold sine. set (t := turn w) in *. clearbody t.
  destruct (square_within t F T) as [[G U] E]. set (u := mul t t) in *. clearbody u. unfold bound in U.
  assert (R : exists d0, small d0 /\ value u = value t * value t + d0).
  { exists (value u - value t * value t). split; [rewrite E; apply rounded_near; nra | lra]. }
  destruct R as [d0 [S0 V0]]. clear E.
  unfold horner, SIN_T. cbn [List.fold_left].
  constant (decimal (-43710256) 10) F0 K0. constant (decimal 795006678 10) F1 K1.
  constant (decimal (-645925999) 9) F2 K2. constant (decimal 157079518 8) F3 K3.
  destruct (step_error _ u _ F0 G F1) as [d1 [d2 [S1 [S2 [G1 V1]]]]]; [rewrite K0; exactly | rewrite K0, K1; exactly |].
  set (p1 := add _ (decimal 795006678 10)) in *.
  assert (B1 : 0.075 <= value p1 <= 0.0796) by (rewrite V1, K0, K1; unfold small in *; exactly).
  destruct (step_error _ u _ G1 G F2) as [d3 [d4 [S3 [S4 [G2 V2]]]]]; [exactly | rewrite K2; exactly |].
  set (p2 := add _ (decimal (-645925999) 9)) in *.
  assert (B2 : -0.646 <= value p2 <= -0.566) by (rewrite V2, K2; unfold small in *; exactly).
  destruct (step_error _ u _ G2 G F3) as [d5 [d6 [S5 [S6 [G3 V3]]]]]; [exactly | rewrite K3; exactly |].
  set (p := add _ (decimal 157079518 8)) in *.
  assert (B3 : 0.924 <= value p <= 1.5709) by (rewrite V3, K3; unfold small in *; exactly).
  destruct (mul_within t p (-524288) 524288 F G3 eq_refl eq_refl) as [[K _] V7]; [unfold bound; nra |].
  pose proof (rounded_near (value t * value p) ltac:(nra)) as S7. rewrite <- V7 in S7.
  split; [exact K |]. assert (A : Rabs (value t * value p + (value (mul t p) - value t * value p)) <= 1.00001).
  { rewrite V3 at 1. rewrite V2, V1, V0.
    apply sine_polynomial; try assumption; [rewrite K0 | rewrite K1 | rewrite K2 | rewrite K3]; lra. }
  apply Rabs_le_inv in A. unfold bound. lra.
Qed.

(* --- the radius ------------------------------------------------------------------------------------------------- *)

(* A whole number's bits are between those of 1 and those of 2^24 - 1: so the exponent that is taken out is 0 to 24. *)
Lemma bits_of_integer : forall a, (1 <= a < 2 ^ 24)%Z -> (0x3f800000 <= bits (float a) <= 0x4b7fffff)%Z.
Proof.
  intros a Ha. destruct (scaled_exactly a 0) as [F V]; [unfold fits; lia | lia |]. fold (float a) in F, V.
  simpl bpow in V. rewrite Rmult_1_r in V.
  assert (A : 1 <= IZR a <= 16777215) by (split; apply IZR_le; lia).
  destruct (float a) as [| | | s m e H]; try discriminate; [simpl in V; lra |].
  destruct s; [exfalso; simpl in V; assert (F2R (Float radix2 (Z.neg m) e) < 0) by (now apply F2R_lt_0); lra |].
  unfold B2R, F2R in V. simpl in V.
  destruct (andb_prop _ _ H) as [C _]. apply Zeq_bool_eq in C. unfold SpecFloat.fexp, SpecFloat.emin in C.
  rewrite Zpos_digits2_pos in C. pose proof (Zdigits_correct radix2 (Z.pos m)) as D.
  set (n := Zdigits radix2 (Z.pos m)) in *. simpl Z.abs in D. assert (0 < bpow radix2 e) by apply bpow_gt_0.
  assert (P : (Z.pos m < 2 ^ 24)%Z) by (apply Z.lt_le_trans with (1 := proj2 D), (Zpower_le radix2 n 24); lia).
  assert (L : (-24 < e)%Z).
  { destruct (Z.lt_ge_cases (-24) e) as [L | L]; [exact L | exfalso]. apply IZR_lt in P. simpl in P.
    assert (bpow radix2 e <= / 16777216) by (change (/ 16777216) with (bpow radix2 (-24)); apply bpow_le; lia). nra. }
  assert (N : n = 24%Z) by lia. rewrite N in D. simpl in D.
  assert (U : (e < 1)%Z).
  { destruct (Z.lt_ge_cases e 1) as [U | U]; [exact U | exfalso].
    assert (2 <= bpow radix2 e) by (change 2 with (bpow radix2 1); now apply bpow_le).
    assert (Q : (8388608 <= Z.pos m)%Z) by lia. apply IZR_le in Q. nra. }
  unfold bits_of_b32, bits_of_binary_float. change (2 ^ 23)%Z with 8388608%Z.
  destruct (Z.leb_spec 0 (Z.pos m - 8388608)); [| lia].
  unfold join_bits. rewrite Z.shiftl_mul_pow2 by lia.
  change (SpecFloat.emin (23 + 1) (2 ^ (8 - 1))) with (-149)%Z. lia.
Qed.

Lemma from_bits_value : forall k r, (k = 126 \/ k = 127)%Z -> (0 <= r < 2 ^ 23)%Z ->
  let x := from_bits (k * 2 ^ 23 + r) in finite x = true /\ value x = IZR (2 ^ 23 + r) * bpow radix2 (k - 150).
Proof.
  intros k r Hk Hr. cbv zeta. unfold b32_of_bits, binary_float_of_bits.
  rewrite is_finite_FF2B, B2R_FF2B. unfold binary_float_of_bits_aux, split_bits.
  replace ((k * 2 ^ 23 + r) mod 2 ^ 23)%Z with r by (rewrite Z.add_comm, Z.mod_add, Z.mod_small; lia).
  replace (((k * 2 ^ 23 + r) / 2 ^ 23) mod 2 ^ 8)%Z with k
    by (rewrite Z.div_add_l, Z.div_small, Z.add_0_r, Z.mod_small; lia).
  replace (2 ^ 23 * 2 ^ 8 <=? k * 2 ^ 23 + r)%Z with false by (symmetry; apply Z.leb_gt; lia).
  replace (Zeq_bool k 0) with false by (destruct Hk as [-> | ->]; reflexivity).
  replace (Zeq_bool k (2 ^ 8 - 1)) with false by (destruct Hk as [-> | ->]; reflexivity).
  destruct (r + 2 ^ 23)%Z as [| p | p] eqn:P; [lia | | lia].
  split; [reflexivity |]. unfold FF2R, F2R. simpl Fnum. simpl Fexp. rewrite <- P, Z.add_comm. f_equal. f_equal.
  destruct Hk as [-> | ->]; reflexivity.
Qed.

(* What is left without the exponent: from the root of 1/2 to that of 2, and below or above 1 as its bits are. *)
Lemma mantissa_within : forall z, (SQRT_HALF <= z < SQRT_HALF + 2 ^ 23)%Z ->
  finite (from_bits z) = true /\ 0.7071067 <= value (from_bits z) <= 1.41421354
  /\ ((z < 0x3f800000)%Z -> value (from_bits z) <= 1) /\ ((0x3f800000 <= z)%Z -> 1 <= value (from_bits z)).
Proof.
  intros z Hz. unfold SQRT_HALF in Hz.
  assert (S : exists k r, (k = 126 \/ k = 127)%Z /\ (0 <= r < 2 ^ 23)%Z /\ z = (k * 2 ^ 23 + r)%Z).
  { destruct (Z.lt_ge_cases z 0x3f800000);
      [exists 126%Z, (z - 126 * 2 ^ 23)%Z | exists 127%Z, (z - 127 * 2 ^ 23)%Z]; lia. }
  destruct S as [k [r [Hk [Hr ->]]]]. destruct (from_bits_value k r Hk Hr) as [F V]. rewrite V. split; [exact F |].
  assert (R : 0 <= IZR r <= 8388607) by (split; apply IZR_le; lia). rewrite plus_IZR. simpl (IZR (2 ^ 23)).
  destruct Hk as [-> | ->]; simpl Z.sub;
    [change (bpow radix2 (-24)) with (/ 16777216) | change (bpow radix2 (-23)) with (/ 8388608)].
  - assert (A : (3474675 <= r)%Z) by lia. apply IZR_le in A. repeat split; intros; (lra || (exfalso; lia)).
  - assert (A : (r <= 3474674)%Z) by lia. apply IZR_le in A. repeat split; intros; (lra || (exfalso; lia)).
Qed.

(* The sum under the root, with the exponent e: the logarithm's two parts. From 0 to 24 LOG_2_TWICE. *)
Lemma parts_within : forall e x q f, (0 <= e <= 24)%Z -> within x (-76784) 108587 -> within q (-620387) (-388388) ->
  (e = 24%Z -> value x <= 0) -> (e = 0%Z -> 0 <= value x) -> f = 24 - IZR e ->
  exists lo hi lo' hi', (fits lo /\ fits hi /\ fits lo' /\ fits hi' /\ 0 <= lo + lo' /\ hi + hi' <= 8721811)%Z
    /\ bound lo <= f * value LOG_2_TWICE <= bound hi /\ bound lo' <= value x * value q <= bound hi'.
Proof.
  intros e x q f E [_ X] [_ Q] Top Bottom ->. constant LOG_2_TWICE Fl Vl. rewrite Vl. clear Fl Vl.
  unfold bound in X, Q.
  assert (C : e = 0%Z \/ e = 24%Z \/ (1 <= e <= 23)%Z) by lia.
  destruct C as [-> | [-> | W]].
  - specialize (Bottom eq_refl). exists 8721809%Z, 8721811%Z, (-257200)%Z, 0%Z. unfold bound, fits.
    repeat split; try lia; nra.
  - specialize (Top eq_refl). exists 0%Z, 0%Z, 0%Z, 181800%Z. unfold bound, fits. repeat split; try lia; nra.
  - assert (T : 1 <= IZR e <= 23) by (split; apply IZR_le; lia).
    exists 363408%Z, 8358402%Z, (-257200)%Z, 181800%Z. unfold bound, fits. repeat split; try lia; nra.
Qed.

Lemma radius_within : forall w, is_word w -> within (radius w) 0 1512075.
Proof.
  intros w [H0 H1]. unfold radius. set (a := Z.lor (Z.shiftr w 8) 1).
  assert (A : (1 <= a < 2 ^ 24)%Z).
  { assert (N : (0 <= a < 2 ^ 24)%Z) by (apply with_odd_bit; [apply shifted; lia | reflexivity]).
    assert (a <> 0)%Z; [| lia]. intros Z0. apply (f_equal Z.odd) in Z0. unfold a in Z0.
    rewrite <- Z.bit0_odd, Z.lor_spec in Z0. simpl in Z0. now rewrite Bool.orb_true_r in Z0. }
  pose proof (bits_of_integer a A) as B. set (b := bits (float a)) in *. clearbody b. clear A a.
  unfold exponent. set (e := Z.shiftr (b - SQRT_HALF) 23).
  assert (E : (e * 2 ^ 23 <= b - SQRT_HALF < (e + 1) * 2 ^ 23)%Z).
  { unfold e. rewrite Z.shiftr_div_pow2 by lia. pose proof (Z.mul_div_le (b - SQRT_HALF) (2 ^ 23)).
    pose proof (Z.mul_succ_div_gt (b - SQRT_HALF) (2 ^ 23)). lia. }
  clearbody e. rewrite Z.shiftl_mul_pow2 by lia. assert (R : (0 <= e <= 24)%Z) by (unfold SQRT_HALF in E; lia).
  destruct (mantissa_within (b - e * 2 ^ 23)) as [Fm [M [Below Above]]]; [lia |].
  set (mantissa := from_bits _) in *. clearbody mantissa. destruct minus_one_value as [F1 V1].
  destruct (add_within mantissa (neg one) (-76784) 108587 Fm F1 eq_refl eq_refl) as [X Vx];
    [rewrite V1; unfold bound; lra |].
  assert (Sign : (e = 24%Z -> value (add mantissa (neg one)) <= 0) /\ (e = 0%Z -> 0 <= value (add mantissa (neg one)))).
  { rewrite Vx, V1, <- (round_0 radix2 fexp ZnearestE). split; intros ->; apply round_le; try typeclasses eauto;
      [assert (value mantissa <= 1) by (apply Below; lia) | assert (1 <= value mantissa) by (apply Above; lia)]; lra. }
  destruct Sign as [Top Bottom]. set (x := add mantissa (neg one)) in *. clearbody x. clear Vx M Below Above.
  pose proof (log_polynomial x X) as Q. set (q := horner LOG_Q x) in *. clearbody q.
  destruct (scaled_exactly (24 - e) 0) as [Fe Ve]; [unfold fits; lia | lia |]. fold (float (24 - e)) in Fe, Ve.
  simpl bpow in Ve. rewrite Rmult_1_r, minus_IZR in Ve. set (f := float (24 - e)) in *. clearbody f.
  destruct (parts_within e x q (value f) R X Q Top Bottom Ve)
    as (lo & hi & lo' & hi' & (A1 & A2 & B1 & B2 & N0 & N1) & P & S).
  constant LOG_2_TWICE Fl Vl. clear Vl.
  destruct (mul_within f LOG_2_TWICE lo hi Fe Fl A1 A2 P) as [[Fp P'] _].
  destruct (mul_within x q lo' hi' (proj1 X) (proj1 Q) B1 B2 S) as [[Fr S'] _].
  destruct (add_within _ _ 0 8721811 Fp Fr eq_refl eq_refl) as [[Fs V] _].
  { apply IZR_le in N0, N1. rewrite plus_IZR in N0, N1. unfold bound in *. lra. }
  apply root_within; try reflexivity; unfold bound in *; [exact Fs | lra |].
  pose proof (sqrt_pos (value (add (mul f LOG_2_TWICE) (mul x q)))). split; [lra |].
  apply Rsqr_incr_0_var; [| lra]. rewrite Rsqr_sqrt by lra. unfold Rsqr. lra.
Qed.

(* --- every element of every direction --------------------------------------------------------------------------- *)

Definition are_words (b : block) := let '(w0, w1, w2, w3) := b in is_word w0 /\ is_word w1 /\ is_word w2 /\ is_word w3.

Lemma normals_are_bounded : forall i b, are_words b ->
  finite (normal i b) = true /\ Rabs (value (normal i b)) <= 5.7683.
Proof.
  intros i [[[w0 w1] w2] w3] [H0 [H1 [H2 H3]]]. unfold normal.
  assert (A : forall w v, is_word w -> is_word v -> let z := mul (radius w) (if Z.even i then cosine v else sine v) in
    finite z = true /\ Rabs (value z) <= 5.7683).
  { intros w v Hw Hv. destruct (radius_within w Hw) as [Fr R].
    assert (A : within (if Z.even i then cosine v else sine v) (-262148) 262148)
      by (destruct (Z.even i); [now apply cosine_within | now apply sine_within]).
    destruct A as [Fa A]. set (angle := if Z.even i then cosine v else sine v) in *. clearbody angle.
    destruct (mul_within (radius w) angle (-1512118) 1512118 Fr Fa eq_refl eq_refl) as [[F V] _];
      [unfold bound in *; nra |].
    split; [exact F | apply Rabs_le; unfold bound in V; lra]. }
  destruct (i <? 2)%Z; now apply A.
Qed.

Lemma xor_is_word : forall a b, is_word a -> is_word b -> is_word (Z.lxor a b).
Proof.
  intros a b [A0 A1] [B0 B1]. assert (X : (0 <= Z.lxor a b)%Z) by now apply Z.lxor_nonneg. split; [exact X |].
  destruct (Z.eq_dec (Z.lxor a b) 0) as [-> | N]; [reflexivity |].
  assert (L : forall n, (0 <= n < 2 ^ 32 -> Z.log2 n < 32)%Z).
  { intros n H. destruct (Z.eq_dec n 0) as [-> | ?]; [reflexivity | apply Z.log2_lt_pow2; lia]. }
  apply Z.log2_lt_pow2; [lia |]. apply Z.le_lt_trans with (1 := Z.log2_lxor a b A0 B0).
  apply Z.max_lub_lt; apply L; lia.
Qed.

Lemma low_is_word : forall n, is_word (word n).
Proof. intros n. now apply Z.mod_pos_bound. Qed.

Lemma high_is_word : forall n, (0 <= n < 2 ^ 64)%Z -> is_word (hi n).
Proof. intros n H. apply shifted; lia. Qed.

Lemma rounds_give_words : forall n k0 k1 b, is_word k0 -> is_word k1 -> are_words b -> are_words (rounds n (k0, k1) b).
Proof.
  induction n as [| n IH]; intros k0 k1 [[[c0 c1] c2] c3] K0 K1 [A [B [C D]]]; [exact (conj A (conj B (conj C D))) |].
  cbn [rounds fst snd]. apply IH; try apply low_is_word. unfold philox_round, are_words.
  repeat split; try apply low_is_word; repeat apply xor_is_word; try assumption;
    apply high_is_word; unfold M0, M1, is_word in *; lia.
Qed.

(* No element of a Gaussian direction is NaN or infinite, or larger than 5.7683. *)
Theorem gaussian_is_bounded : forall seed p j, (0 <= seed < 2 ^ 64)%Z -> is_word p -> (0 <= j < 2 ^ 64)%Z ->
  finite (gaussian seed p j) = true /\ Rabs (value (gaussian seed p j)) <= 5.7683.
Proof.
  intros seed p j S P J. apply normals_are_bounded, rounds_give_words; [apply low_is_word | now apply high_is_word |].
  split; [apply low_is_word |]. split; [| split; [exact P | unfold is_word; lia]].
  apply high_is_word. unfold block_number. change 31%Z with (Z.ones 5). rewrite Z.land_ones by lia.
  pose proof (shifted j 7 0 (2 ^ 57) ltac:(lia) ltac:(lia)). pose proof (Z.mod_pos_bound j (2 ^ 5)). lia.
Qed.

Print Assumptions gaussian_is_bounded.
