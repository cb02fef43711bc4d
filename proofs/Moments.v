(* The exact second moments of A = (1/P) sum_p z_p z_p^T, and a counter-example to Theorem 1 in exact fractions. *)

From Coq Require Import Reals Arith List Bool Lia Lra Psatz.
Import ListNotations.
Open Scope R_scope.

Fixpoint sum (n : nat) (f : nat -> R) : R := match n with O => 0 | S n => sum n f + f n end.

Definition equal (i j : nat) : R := if i =? j then 1 else 0.

Lemma sum_ext : forall n f g, (forall i, (i < n)%nat -> f i = g i) -> sum n f = sum n g.
Proof. induction n; intros; simpl; [reflexivity |]. rewrite (IHn f g), H by auto. reflexivity. Qed.

Lemma sum_plus : forall n f g, sum n (fun i => f i + g i) = sum n f + sum n g.
Proof. induction n; intros; simpl; [lra |]. rewrite IHn. lra. Qed.

Lemma sum_scale : forall n c f, sum n (fun i => c * f i) = c * sum n f.
Proof. induction n; intros; simpl; [lra |]. rewrite IHn. lra. Qed.

Lemma sum_constant : forall n c, sum n (fun _ => c) = INR n * c.
Proof. induction n; intros; [simpl; lra |]. rewrite S_INR. simpl. rewrite IHn. lra. Qed.

Lemma sum_zero : forall n f, (forall i, (i < n)%nat -> f i = 0) -> sum n f = 0.
Proof. intros. rewrite (sum_ext n f (fun _ => 0)), sum_constant by assumption. lra. Qed.

(* Of a sum with an index that must be k one term is left. *)
Lemma sum_at : forall n k f, (k < n)%nat -> sum n (fun i => equal i k * f i) = f k.
Proof.
  induction n; intros k f H; [lia |]. simpl. destruct (Nat.eq_dec k n) as [-> | N].
  - rewrite sum_zero. { unfold equal. rewrite Nat.eqb_refl. lra. }
    intros i Hi. unfold equal. destruct (Nat.eqb_spec i n); [lia | lra].
  - rewrite IHn by lia. unfold equal. destruct (Nat.eqb_spec n k); [lia | lra].
Qed.

Lemma equal_comm : forall i j, equal i j = equal j i.
Proof. intros. unfold equal. now rewrite Nat.eqb_sym. Qed.

(* --- expectations ----------------------------------------------------------------------------------------------- *)

(* All that is used of an expectation: it is linear, and 1 of the constant 1. *)
Record expectation (outcome : Type) := {
  mean :> (outcome -> R) -> R;
  mean_ext : forall f g, (forall w, f w = g w) -> mean f = mean g;
  mean_plus : forall f g, mean (fun w => f w + g w) = mean f + mean g;
  mean_scale : forall c f, mean (fun w => c * f w) = c * mean f;
  mean_one : mean (fun _ => 1) = 1
}.

Section Moments.

Variables (outcome : Type) (E : expectation outcome).

Lemma mean_sum : forall n (f : nat -> outcome -> R), E (fun w => sum n (fun i => f i w)) = sum n (fun i => E (f i)).
Proof.
  induction n; intros; simpl.
  - rewrite (mean_ext _ E _ (fun _ => 0 * 1)), mean_scale by (intros; lra). lra.
  - now rewrite mean_plus, IHn.
Qed.

Variables (d P : nat) (gamma beta : R) (z : nat -> nat -> outcome -> R). (* z_p,i *)

(* Gaussian: gamma 1, beta 0; the sphere of radius sqrt d: d/(d + 2), 0; Rademacher: 1, -2. *)
Hypothesis fourth : forall p i j k l, (p < P)%nat -> (i < d)%nat -> (j < d)%nat -> (k < d)%nat -> (l < d)%nat ->
  E (fun w => z p i w * z p j w * (z p k w * z p l w))
  = gamma * (equal i j * equal k l + equal i k * equal j l + equal i l * equal j k)
    + beta * (equal i j * equal j k * equal k l).
Hypothesis independent : forall p q i j k l, (p < P)%nat -> (q < P)%nat -> p <> q ->
  (i < d)%nat -> (j < d)%nat -> (k < d)%nat -> (l < d)%nat ->
  E (fun w => z p i w * z p j w * (z q k w * z q l w)) = equal i j * equal k l.

Variable v : nat -> R.
Definition norm2 := sum d (fun i => v i * v i).

(* (A v)_a, of P directions. *)
Definition moved (a : nat) (w : outcome) : R :=
  / INR P * sum P (fun p => sum d (fun i => z p a w * z p i w * v i)).

Lemma product_of_sums : forall n m f g, sum n f * sum m g = sum n (fun i => sum m (fun j => f i * g j)).
Proof.
  intros n m f g. rewrite Rmult_comm, <- sum_scale. apply sum_ext. intros i _. rewrite Rmult_comm. symmetry.
  apply sum_scale.
Qed.

Lemma one_direction : forall p a b, (p < P)%nat -> (a < d)%nat -> (b < d)%nat ->
  sum d (fun i => sum d (fun k => v i * v k * E (fun w => z p a w * z p i w * (z p b w * z p k w))))
  = gamma * (equal a b * norm2 + 2 * (v a * v b)) + beta * (equal a b * (v a * v a)).
Proof.
  intros p a b Hp Ha Hb.
  rewrite (sum_ext d _ (fun i => gamma * (equal i a * (v i * v b)) + gamma * (equal a b * (v i * v i))
    + gamma * (equal i b * (v i * v a)) + beta * (equal i a * (equal a b * (v i * v a))))).
  - rewrite !sum_plus, !sum_scale, !sum_at by assumption. unfold norm2. lra.
  - intros i Hi.
    rewrite (sum_ext d _ (fun k => gamma * equal a i * v i * (equal k b * v k)
      + gamma * equal a b * v i * (equal k i * v k)
      + gamma * equal i b * v i * (equal k a * v k) + beta * (equal a i * equal i b) * v i * (equal k b * v k))).
    + rewrite !sum_plus, !sum_scale, !sum_at by assumption. rewrite (equal_comm a i).
      replace (beta * (equal i a * equal i b) * v i * v b) with (beta * (equal i a * (equal a b * (v i * v a)))).
      * lra.
      * unfold equal. destruct (Nat.eqb_spec i a) as [-> |]; [| lra]. destruct (Nat.eqb_spec a b) as [-> |]; lra.
    + intros k Hk. rewrite fourth by assumption. rewrite (equal_comm b k), (equal_comm a k), (equal_comm i k). ring.
Qed.

(* E (Av)_a (Av)_b: so E A v v^T A = (1 - 1/P) v v^T + (1/P)(gamma (|v|^2 I + 2 v v^T) + beta diag v^2). *)
Theorem second_moments : forall a b, (0 < P)%nat -> (a < d)%nat -> (b < d)%nat ->
  E (fun w => moved a w * moved b w) = (1 - / INR P) * (v a * v b)
    + / INR P * (gamma * (equal a b * norm2 + 2 * (v a * v b)) + beta * (equal a b * (v a * v a))).
Proof.
  intros a b HP Ha Hb. assert (P0 : INR P <> 0) by (apply not_0_INR; lia).
  set (own := gamma * (equal a b * norm2 + 2 * (v a * v b)) + beta * (equal a b * (v a * v a))).
  rewrite (mean_ext _ E _ (fun w => / INR P * / INR P * sum P (fun p => sum P (fun q => sum d (fun i => sum d (fun k =>
    v i * v k * (z p a w * z p i w * (z q b w * z q k w)))))))).
  - rewrite mean_scale, mean_sum.
    rewrite (sum_ext P _ (fun p => v a * v b * INR P + (own - v a * v b))).
    + rewrite sum_constant. unfold own. field. exact P0.
    + intros p Hp. rewrite mean_sum.
      rewrite (sum_ext P _ (fun q => v a * v b + (own - v a * v b) * equal q p)).
      * rewrite sum_plus, sum_constant.
        rewrite (sum_ext P (fun q => _ * equal q p) (fun q => equal q p * (own - v a * v b))) by (intros; ring).
        rewrite sum_at by exact Hp. ring.
      * intros q Hq. rewrite mean_sum.
        rewrite (sum_ext d _ (fun i => sum d (fun k =>
          v i * v k * E (fun w => z p a w * z p i w * (z q b w * z q k w))))).
        -- destruct (Nat.eq_dec p q) as [<- | N].
           ++ rewrite one_direction by assumption. fold own. unfold equal. rewrite Nat.eqb_refl. ring.
           ++ rewrite (sum_ext d _ (fun i => equal i a * (v i * v b))).
              ** rewrite sum_at by exact Ha. unfold equal. destruct (Nat.eqb_spec q p); [lia | ring].
              ** intros i Hi. rewrite (sum_ext d _ (fun k => equal k b * (equal a i * v i * v k))).
                 { rewrite sum_at by exact Hb. rewrite (equal_comm a i). ring. }
                 intros k Hk. rewrite independent by assumption. rewrite (equal_comm b k). ring.
        -- intros i Hi. rewrite mean_sum. apply sum_ext. intros k Hk. now rewrite mean_scale.
  - intros w. unfold moved. rewrite <- !Rmult_assoc.
    set (one := sum P _). set (other := sum P _).
    replace (/ INR P * one * / INR P * other) with (/ INR P * / INR P * (one * other)) by ring. unfold one, other.
    rewrite product_of_sums. f_equal. apply sum_ext. intros p _. apply sum_ext. intros q _. rewrite product_of_sums.
    apply sum_ext. intros i _. apply sum_ext. intros k _. ring.
Qed.

(* E |Av|^2 = rho |v|^2: the rho of docs/theory.md (F1). *)
Theorem second_moment_of_the_length : (0 < P)%nat ->
  E (fun w => sum d (fun a => moved a w * moved a w))
  = (1 + (gamma * (INR d + 2) + beta - 1) / INR P) * norm2.
Proof.
  intros HP. assert (P0 : INR P <> 0) by (apply not_0_INR; lia). rewrite mean_sum.
  rewrite (sum_ext d _ (fun a =>
    ((1 - / INR P) + / INR P * (2 * gamma + beta)) * (v a * v a) + / INR P * gamma * norm2)).
  - rewrite sum_plus, sum_scale, sum_constant. fold norm2. field. exact P0.
  - intros a Ha. rewrite second_moments by assumption. unfold equal. rewrite Nat.eqb_refl. ring.
Qed.

End Moments.

(* --- a counter-example to Theorem 1 ----------------------------------------------------------------------------- *)

(* f(x) = x^2/2 in one dimension, f(x; xi) = x^2/2 - xi x with E xi = 0, E xi^2 = 1: L = 1, sigma = 1, sigma_G = 0, and
   D = 0 at x_0 = 0. One client, K = 1, P = 1000, R = 2, eta = 0.1663, mu = 1/1000. *)
Section Theorem_1.

Definition directions := 1000%nat.
Definition eta := 1663 / 10000.
Definition mu := 1 / 1000.

(* What the paper asks of eta (m = K = L = d = 1), and what it says of the mean of |grad f(x_r)|^2. *)
Definition condition (P : R) :=
  eta <= P / (24 * 5) /\ eta <= 2 * P / (P + 5) /\ eta <= 1 /\ eta <= P * 4 ^ 3 / (2 * (3 * P * 4 ^ 3 + 7 ^ 3)).
Definition printed (P R : R) :=
  4 * 0 / (R * eta) + (72 * eta + 24 * 5 * eta / P) * 0 + 16 * 5 * eta / P * 1 + 2 * mu ^ 2 * 4 ^ 3.

Variables (outcome : Type) (E : expectation outcome) (xi : outcome -> R) (z : nat -> outcome -> R).

(* The moments of standard normal numbers that are needed, all independent; and xi is independent of them. *)
Hypothesis fourth : forall p, (p < directions)%nat -> E (fun w => z p w ^ 2 * z p w ^ 2) = 3.
Hypothesis sixth : forall p, (p < directions)%nat -> E (fun w => z p w ^ 3 * z p w ^ 3) = 15.
Definition two (p q : nat) := (p < directions)%nat /\ (q < directions)%nat /\ p <> q.
Hypothesis squares : forall p q, two p q -> E (fun w => z p w ^ 2 * z q w ^ 2) = 1.
Hypothesis cubes : forall p q, two p q -> E (fun w => z p w ^ 3 * z q w ^ 3) = 0.
Hypothesis noise : forall g, E (fun w => xi w * g (fun p => z p w)) = 0.
Hypothesis noise_squared : forall g, E (fun w => xi w ^ 2 * g (fun p => z p w)) = E (fun w => g (fun p => z p w)).

Definition loss (x w : R) := x ^ 2 / 2 - w * x.
Definition scalar (p : nat) (w : outcome) := (loss (mu * z p w) (xi w) - loss 0 (xi w)) / mu.
Definition x_1 (w : outcome) := 0 - eta * (/ INR directions * sum directions (fun p => scalar p w * z p w)).

Lemma sum_of_pairs : forall (f : nat -> outcome -> R) own other,
  (forall p, (p < directions)%nat -> E (fun w => f p w * f p w) = own) ->
  (forall p q, two p q -> E (fun w => f p w * f q w) = other) ->
  E (fun w => sum directions (fun p => f p w) * sum directions (fun p => f p w))
  = INR directions * (own + (INR directions - 1) * other).
Proof.
  intros f own other same apart.
  rewrite (mean_ext _ E _ (fun w => sum directions (fun p => sum directions (fun q => f p w * f q w))))
    by (intros; apply product_of_sums).
  rewrite mean_sum, (sum_ext _ _ (fun p => own + (INR directions - 1) * other)); [apply sum_constant |].
  intros p Hp. rewrite mean_sum, (sum_ext _ _ (fun q => other + (own - other) * equal q p)).
  - rewrite sum_plus, sum_constant, sum_scale. rewrite (sum_ext _ _ (fun q => equal q p * 1)) by (intros; ring).
    rewrite sum_at by exact Hp. ring.
  - intros q Hq. unfold equal.
    destruct (Nat.eqb_spec q p) as [-> | N]; [rewrite same by exact Hp | rewrite apart by (unfold two; auto)]; ring.
Qed.

Lemma first_step : E (fun w => x_1 w ^ 2) = eta ^ 2 * (1002 / 1000 + mu ^ 2 / 4 * (15 / 1000)).
Proof.
  set (n := INR directions). assert (N : n = 1000) by (unfold n, directions; now rewrite INR_IZR_INZ).
  set (s2 := fun v : nat -> R => sum directions (fun p => v p ^ 2)).
  set (s3 := fun v : nat -> R => sum directions (fun p => v p ^ 3)).
  rewrite (mean_ext _ E _ (fun w => (eta ^ 2 / n ^ 2) * (xi w ^ 2 * (s2 (fun p => z p w) * s2 (fun p => z p w)))
    + ((eta ^ 2 / n ^ 2) * (- mu) * (xi w * (s2 (fun p => z p w) * s3 (fun p => z p w)))
    + (eta ^ 2 / n ^ 2) * (mu ^ 2 / 4) * (s3 (fun p => z p w) * s3 (fun p => z p w))))).
  - rewrite !mean_plus, !mean_scale.
    rewrite (noise (fun v => s2 v * s3 v)), (noise_squared (fun v => s2 v * s2 v)). unfold s2, s3.
    rewrite (sum_of_pairs (fun p w => z p w ^ 2) 3 1 fourth squares).
    rewrite (sum_of_pairs (fun p w => z p w ^ 3) 15 0 sixth cubes). fold n. rewrite N. field.
  - intros w. unfold x_1.
    rewrite (sum_ext directions _ (fun p => (- xi w) * z p w ^ 2 + mu / 2 * z p w ^ 3)).
    + rewrite sum_plus, !sum_scale. fold n. unfold s2, s3. field. rewrite N. lra.
    + intros p _. unfold scalar, loss, mu. field.
Qed.

(* grad f(x) = x: the mean over the rounds 0 and 1 is above what is printed, with every condition met. *)
Theorem theorem_1_is_false_as_printed :
  condition (INR directions) /\ / 2 * (0 ^ 2 + E (fun w => x_1 w ^ 2)) > printed (INR directions) 2.
Proof.
  rewrite first_step. assert (N : INR directions = 1000) by (unfold directions; now rewrite INR_IZR_INZ).
  rewrite N. unfold condition, printed, eta, mu. repeat split; lra.
Qed.

End Theorem_1.

Print Assumptions second_moments.
Print Assumptions second_moment_of_the_length.
Print Assumptions theorem_1_is_false_as_printed.
