//! Numbers in 8 bits: as operations of XLA's and as steps of the CPU plugin's pass, both beside a search of the
//! map's entries.

use crate::support::{Rng, Value, compile_for, trace};
use xtrain_graphs::block_codes::{BLOCK, block_dims};
use xtrain_graphs::op::{CallSet, DynamicMap, OnePass, Op};
use xtrain_graphs::{CpuKernels, DType, Target, passes};

const MAPS: [DynamicMap; 2] = [DynamicMap::Signed, DynamicMap::Unsigned];

/// XLA's operations, and the plugin's pass.
fn targets() -> [Target; 2] {
    xtrain_xla::register_kernels();
    let kernels = CpuKernels {
        calls: CallSet::only::<OnePass>(),
        ..CpuKernels::default()
    };
    [Target::CPU, Target::Cpu(kernels)]
}

/// Numbers of every decade, zeros, and blocks that are all zero.
fn numbers(rng: &mut Rng, map: DynamicMap, count: usize) -> Vec<f64> {
    let raw = rng.floats(2 * count, -1.0, 1.0);
    let number = |i: usize| {
        let (x, scale) = (raw[2 * i], raw[2 * i + 1]);
        let x = if i / BLOCK % 3 == 1 || i % 50 == 7 {
            0.0
        } else {
            f64::from((x * 10f64.powf(4.0 * scale - 4.0)) as f32)
        };
        match map {
            DynamicMap::Signed => x,
            DynamicMap::Unsigned => x.abs(),
        }
    };
    (0..count).map(number).collect()
}

/// Codes, scales and values: of arrays of several blocks, with a short last one, whose rows are no blocks.
#[test]
fn numbers_go_to_the_nearest_entry_and_come_back() {
    let mut rng = Rng(47);
    for (map, dims) in MAPS
        .into_iter()
        .flat_map(|map| [vec![1], vec![700], vec![5, 512], vec![60, 100]].map(|dims| (map, dims)))
    {
        let entries: Vec<f64> = map.entries().into_iter().map(f64::from).collect();
        let count: usize = dims.iter().product();
        let x = numbers(&mut rng, map, count);
        let arguments = [Value::new(DType::F32, &dims, &x)];
        let graph = trace(&arguments, |trace, x| {
            let _update = trace.update_scope("optimizer");
            let scales = x[0].block_scales(&block_dims(&dims), 0.0)?;
            let codes = x[0].encode_blocks(&scales, map)?;
            let values = codes.decode_blocks(&scales, map)?;
            Ok(vec![scales, codes, values])
        })
        .unwrap();
        for target in targets() {
            let results = compile_for(&graph, target).run(&arguments);
            let [scales, codes, values] = &results[..] else {
                unreachable!()
            };
            assert_eq!(codes.shape.dtype, DType::U8);
            let (scales, codes, values) = (scales.numbers(), codes.numbers(), values.numbers());
            for (block, x) in x.chunks(BLOCK).enumerate() {
                let largest = x.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                assert_eq!(scales[block], largest, "{map:?} {dims:?}: scale {block}");
                for (i, x) in x.iter().enumerate() {
                    let at = block * BLOCK + i;
                    let (code, value) = (codes[at] as usize, values[at]);
                    let what =
                        format!("{map:?} {dims:?} {target}: {x} of {largest} has code {code}");
                    if largest == 0.0 {
                        assert_eq!(value, 0.0, "{what}");
                        continue;
                    }
                    let part = x / largest;
                    let off = (entries[code] - part).abs();
                    let nearest = entries.iter().map(|entry| (entry - part).abs());
                    let nearest = nearest.fold(f64::INFINITY, f64::min);
                    // Half way between two entries rounding decides.
                    assert!(
                        off <= nearest + 1e-6 * part.abs(),
                        "{what}, {off} for {nearest}"
                    );
                    let expected = entries[code] * largest;
                    assert!(
                        (value - expected).abs() <= 3e-7 * expected.abs(),
                        "{what}: {value}"
                    );
                    assert!(*x != 0.0 || value == 0.0, "{what}");
                }
            }
        }
    }
}

/// Every entry is what its code stands for.
#[test]
fn codes_are_the_entries_in_order() {
    for map in MAPS {
        let codes: Vec<f64> = (0..256).map(f64::from).collect();
        let arguments = [
            Value::new(DType::U8, &[256], &codes),
            Value::new(DType::F32, &[1], &[1.0]),
        ];
        let graph = trace(&arguments, |trace, x| {
            let _update = trace.update_scope("optimizer");
            let values = x[0].decode_blocks(&x[1], map)?;
            let again = values.encode_blocks(&x[1], map)?;
            Ok(vec![values, again])
        })
        .unwrap();
        for target in targets() {
            let results = compile_for(&graph, target).run(&arguments);
            for (found, entry) in results[0].numbers().iter().zip(map.entries()) {
                let entry = f64::from(entry);
                assert!(
                    (found - entry).abs() <= 2e-7 * entry.abs(),
                    "{found}, {entry}"
                );
            }
            assert_eq!(results[1].numbers(), codes, "{map:?} {target}");
        }
    }
}

/// Decoding, an update and encoding are one call, which gives the same as operations of XLA's; a scale has a
/// floor.
#[test]
fn an_update_of_numbers_in_8_bits_is_one_pass() {
    let mut rng = Rng(48);
    let dims = [24, 512];
    let blocks = block_dims(&dims);
    let count = 24 * 512;
    let codes: Vec<f64> = rng
        .floats(count, 0.0, 255.0)
        .into_iter()
        .map(f64::floor)
        .collect();
    let arguments = [
        Value::new(DType::U8, &dims, &codes),
        Value::new(DType::F32, &blocks, &rng.floats(48, 0.1, 2.0)),
        Value::new(DType::F32, &dims, &rng.floats(count, -1.0, 1.0)),
        Value::new(DType::F32, &dims, &rng.floats(count, -1.0, 1.0)),
    ];
    let graph = trace(&arguments, |trace, x| {
        let _update = trace.update_scope("optimizer");
        let [codes, scales, w, g] = x else {
            unreachable!()
        };
        let m = codes.decode_blocks(scales, DynamicMap::Signed)?;
        let m = m.mul_scalar(0.9)?.add(&g.mul_scalar(0.1)?)?;
        let scales = m.block_scales(&blocks, 1.0)?;
        let codes = m.encode_blocks(&scales, DynamicMap::Signed)?;
        Ok(vec![w.sub(&m.mul_scalar(0.01)?)?, codes, scales])
    })
    .unwrap();
    let [operations, pass] = targets();
    let lowered = passes::lower(&graph, pass).unwrap();
    lowered.check().unwrap();
    let calls = lowered.nodes.iter();
    let calls = calls.filter_map(|node| node.op.call::<OnePass>());
    assert_eq!(calls.count(), 1);
    let is_left = |op: &Op| matches!(op, Op::PassStep(_) | Op::Convert(_));
    assert!(!lowered.nodes.iter().any(|node| is_left(&node.op)));
    let [want, got] = [operations, pass].map(|target| compile_for(&graph, target).run(&arguments));
    for (want, got) in want.iter().zip(&got) {
        let off = |(a, b): (&f64, &f64)| (a - b).abs();
        let (want, got) = (want.numbers(), got.numbers());
        let differ = want
            .iter()
            .zip(&got)
            .filter(|pair| off(*pair) > 1e-6)
            .count();
        let most = want.iter().zip(&got).map(off).fold(0.0, f64::max);
        assert!(
            differ <= count / 500 && most <= 1.0,
            "{differ} differ, by {most} at most"
        );
    }
    assert!(got[2].numbers().iter().all(|scale| *scale >= 1.0));
    assert!(got[2].numbers().iter().any(|scale| *scale > 1.0));
}
