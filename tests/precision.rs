//! 16-bit products: that the form given to the compiler computes the product, that models stay near
//! f32, that the loss scale moves as torch's does, and that a skipped step changes nothing else.
//! Curves and resumes are in `train.rs`.

use crate::golden::for_each_family;
use crate::support::objective_of;
use xtrain::cache::CacheSettings;
use xtrain::parallel::Mesh;
use xtrain::trainer::session::{Recording, Session};
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{Phase, TrainStep, read_metrics};
use xtrain::trainer::{device, parameters};
use xtrain_graphs::op::DotDims;
use xtrain_graphs::optim::{
    ADAMW, GROWTH_INTERVAL, INITIAL_SCALE, LossScale, OPTIMIZERS, Schedule,
};
use xtrain_graphs::{DType, Precision, Shape};

const LOW: [Precision; 2] = [Precision::Bf16, Precision::Fp16];

fn session() -> Session {
    device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap()
}

/// Whole numbers from -4 to 4, exact in both types, and so are their short sums of products.
fn whole_numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 7919 + seed * 104_729) % 9) as f32 - 4.0)
        .collect()
}

/// Every orientation of both operands and of the result, with and without batch dimensions, sizes
/// of 1 and odd ones too: exactly the f32 product.
#[test]
fn products_have_a_form_that_the_compiler_takes_whatever_their_shape() {
    let mut session = session();
    for (batch, m, k, n) in [
        (0, 1, 1, 1),
        (0, 1, 17, 5),
        (0, 5, 3, 1),
        (0, 33, 64, 31),
        (1, 4, 6, 2),
        (3, 7, 1, 9),
        (2, 16, 32, 48),
    ] {
        let sizes = format!("{batch} x [{m}, {k}] x [{k}, {n}]");
        let [wide, bf16, fp16] =
            [Precision::F32, Precision::Bf16, Precision::Fp16].map(|precision| {
                let mut recording = session.begin();
                recording.set_precision(precision);
                let names: Vec<String> = (0..8)
                    .map(|form| product(&mut recording, form, batch, [m, k, n]))
                    .collect();
                let marked = recording.mark_step("products").unwrap();
                let read = |name: &String| -> Vec<f32> {
                    marked
                        .fetched(name)
                        .download_to()
                        .unwrap_or_else(|e| panic!("{precision} {sizes}: {e}"))
                };
                names.iter().map(read).collect::<Vec<_>>()
            });
        assert!(wide == bf16 && wide == fp16, "{sizes}");
        assert!(
            wide.iter().flatten().any(|x| *x != 0.0) || k == 1,
            "{sizes}"
        );
    }
}

/// Records one product; the bits of `form` say whether left operand, right operand and result are
/// turned. Gives its output's name.
fn product(recording: &mut Recording, form: usize, batch: usize, [m, k, n]: [usize; 3]) -> String {
    let [left_turned, right_turned, result_turned] = [1, 2, 4].map(|bit| form & bit != 0);
    let leading: Vec<usize> = if batch > 0 { vec![batch] } else { vec![] };
    let rank = leading.len();
    let mut operand = |name: &str, turned: bool, [rows, columns]: [usize; 2], seed| {
        let last = if turned {
            [columns, rows]
        } else {
            [rows, columns]
        };
        let dims: Vec<usize> = leading.iter().copied().chain(last).collect();
        let values = whole_numbers(dims.iter().product(), seed);
        let shape = Shape::new(DType::F32, dims);
        recording
            .feed_host(
                &format!("{name}{form}"),
                bytemuck::cast_slice(&values),
                &shape,
            )
            .unwrap()
    };
    let a = operand("a", left_turned, [m, k], 1);
    let b = operand("b", right_turned, [k, n], 2);
    let at = |turned: bool, plain: usize| rank + if turned { 1 - plain } else { plain };
    let dims = DotDims {
        lhs_contracting: vec![at(left_turned, 1)],
        rhs_contracting: vec![at(right_turned, 0)],
        lhs_batch: (0..rank).collect(),
        rhs_batch: (0..rank).collect(),
    };
    let mut product = a.dot_general(&b, dims, DType::F32).unwrap();
    if result_turned {
        product = product
            .transpose(&(0..rank).chain([rank + 1, rank]).collect::<Vec<_>>())
            .unwrap();
    }
    let name = format!("product{form}");
    recording.fetch(&name, &product);
    name
}

/// Bars: the loss to 1 % and all gradients together to 10 % in bf16 (8 significant bits), to a
/// fifth of that in fp16 (11).
#[test]
fn families_stay_near_f32_and_their_master_gradients_are_f32() {
    // Both precisions where a decoder and an encoder have them; of relatives, which are a file with
    // these or with Llama, one each.
    stay_near_f32(|family| match family {
        "gpt2" | "bert" => &[Precision::Bf16, Precision::Fp16],
        "roberta" | "mistral" | "qwen2" | "qwen3" | "smollm3" | "granite" | "gemma" | "gemma2"
        | "gemma3_text" | "phi3" => &[],
        _ => &[Precision::Bf16],
    });
}

#[test]
#[ignore = "slow: every family in both precisions"]
fn every_family_stays_near_f32_and_its_master_gradients_are_f32() {
    stay_near_f32(|_| &LOW);
}

fn stay_near_f32(of_family: impl Fn(&str) -> &'static [Precision]) {
    for_each_family(|name, mut case| {
        let config = case.model.config();
        let precisions = of_family(&config.text("model_type").unwrap());
        if precisions.is_empty() {
            return;
        }
        let parameters = case.model.parameters();
        let (wide_loss, wide) = case.gradients(Precision::F32);
        for &precision in precisions {
            let bar = if precision == Precision::Bf16 {
                0.01
            } else {
                0.002
            };
            let (loss, low) = case.gradients(precision);
            let off = (loss - wide_loss).abs() / wide_loss.abs();
            let sum = |f: &dyn Fn(f32, f32) -> f32| -> f64 {
                let pairs = wide.iter().flatten().zip(low.iter().flatten());
                pairs.map(|(&a, &b)| f64::from(f(a, b))).sum::<f64>().sqrt()
            };
            let difference = sum(&|a, b| (a - b).powi(2)) / sum(&|a, _| a * a);
            println!("{name} in {precision}: loss off by {off:.1e}, gradients by {difference:.1e}");
            assert!(
                f64::from(off) <= bar && difference <= 10.0 * bar,
                "{name} in {precision}: {off} {difference}"
            );
            // A matrix of rounded numbers would have empty low bits everywhere.
            let bits = if precision == Precision::Bf16 { 16 } else { 13 };
            for (parameter, gradient) in parameters
                .iter()
                .zip(&low)
                .filter(|(p, _)| p.dims.len() == 2)
            {
                let is_rounded = gradient
                    .iter()
                    .all(|x| x.to_bits().trailing_zeros() >= bits);
                let is_zero = gradient.iter().all(|x| *x == 0.0);
                assert!(
                    !is_rounded || is_zero,
                    "{name}: the gradient of {} was rounded to {precision}",
                    parameter.name
                );
            }
        }
    });
}

/// The rule on the device beside `torch.amp.GradScaler`'s written out: halve and forget, or count,
/// and double when it is time.
#[test]
fn the_loss_scale_moves_as_torchs() {
    let mut session = session();
    let scalar = Shape::scalar(DType::F32);
    let set = |session: &mut Session, name: &str, x: f32| {
        session
            .set_state(name, bytemuck::bytes_of(&x), &scalar)
            .unwrap()
    };
    set(&mut session, "scale", INITIAL_SCALE);
    set(&mut session, "good", GROWTH_INTERVAL as f32 - 3.0);
    let (mut scale, mut good) = (INITIAL_SCALE, GROWTH_INTERVAL as u64 - 3);
    for finite in [true, true, true, true, false, true, false, false, true] {
        let mut recording = session.begin();
        let old = LossScale {
            scale: recording.state("scale").unwrap(),
            good_steps: recording.state("good").unwrap(),
        };
        let norm = if finite { 1.0f32 } else { f32::INFINITY };
        let norm = recording
            .feed_host("norm", bytemuck::bytes_of(&norm), &scalar)
            .unwrap();
        let new = old.next(&norm.is_finite().unwrap()).unwrap();
        recording.assign("scale", &new.scale).unwrap();
        recording.assign("good", &new.good_steps).unwrap();
        recording.mark_step("scale").unwrap();
        if finite {
            good += 1;
            if good == GROWTH_INTERVAL as u64 {
                (scale, good) = (scale * 2.0, 0);
            }
        } else {
            (scale, good) = (scale * 0.5, 0);
        }
        let read = |name: &str| session.state(name).unwrap().download_to::<f32>().unwrap()[0];
        assert_eq!(
            (read("scale"), read("good")),
            (scale, good as f32),
            "{finite}"
        );
    }
}

/// A scale far too large makes every gradient infinite: that step leaves each bit of weights,
/// moments and bias corrections alone, and the next one is the one that would have been made in its
/// place.
#[test]
fn a_skipped_step_changes_nothing_but_the_scale() {
    for_each_family(|name, mut case| {
        let batch = case.batch(0);
        // One family says all of an optimizer, and AdamW all of a family.
        let kinds = OPTIMIZERS.iter();
        for kind in kinds.filter(|kind| **kind == ADAMW || name.starts_with("gpt2")) {
            let schedule = Schedule::constant(1e-3);
            let train_step = TrainStep::new(
                &*case.model,
                objective_of(case.model.head_kind(), 0.0),
                OptimizerSettings::constant(*kind, 1e-3),
                schedule,
                1,
            )
            .with_precision(Precision::Fp16);
            let extra = train_step.extra_state(false);
            parameters::set_extra_state(&mut case.session, &extra, None).unwrap();
            let step = |session: &mut Session, step: u64| {
                let marked = train_step
                    .microbatch(
                        session,
                        &batch,
                        Phase::Update { accumulated: false },
                        step,
                        0,
                    )
                    .unwrap();
                read_metrics(&marked).unwrap().wait().unwrap()
            };
            let everything = |session: &mut Session| -> Vec<(String, Vec<u8>)> {
                let names = train_step
                    .parameters()
                    .iter()
                    .map(|p| p.name.clone())
                    .chain(extra.iter().map(|s| s.name.clone()));
                let names: Vec<String> = names.filter(|n| !n.starts_with("loss_scale")).collect();
                let tensors = parameters::download(session, &names).unwrap();
                tensors.into_iter().map(|t| (t.name, t.bytes)).collect()
            };
            let set_scale = |session: &mut Session, x: f32| {
                session
                    .set_state(
                        "loss_scale",
                        bytemuck::bytes_of(&x),
                        &Shape::scalar(DType::F32),
                    )
                    .unwrap();
            };
            set_scale(&mut case.session, 1024.0);
            assert!(!step(&mut case.session, 0).is_skipped(), "{name}");
            let before = everything(&mut case.session);
            set_scale(&mut case.session, 1e30);
            let skipped = step(&mut case.session, 1);
            assert!(
                skipped.is_skipped() && skipped.loss.is_finite(),
                "{name}: {skipped:?}"
            );
            assert!(
                before == everything(&mut case.session),
                "{name}: a skipped step changed something"
            );
            let scale = case
                .session
                .state("loss_scale")
                .unwrap()
                .download_to::<f32>()
                .unwrap()[0];
            assert_eq!(scale, 5e29, "{name}");
            set_scale(&mut case.session, 1024.0);
            assert!(
                !step(&mut case.session, 2).is_skipped() && before != everything(&mut case.session),
                "{name}"
            );
        }
    });
}
