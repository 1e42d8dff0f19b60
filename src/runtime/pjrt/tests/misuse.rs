//! What callers can get wrong: each ends in an error that names it, never in an abort or a wrong
//! number.

use super::*;

#[test]
fn a_buffer_that_is_donated_and_read_at_once_is_refused_or_copied() {
    let client = cpu!(1);
    let donate = donate(&client);
    let a = put(&client, &[1.5; 1024], 0);
    match donate.execute(&[&a, &a]) {
        Ok(outputs) => assert_eq!(outputs[0].download_to::<f32>().unwrap(), [3.0; 1024]),
        Err(error) => assert!(error.code().is_some(), "{error}"),
    }
}

#[test]
fn threads_that_donate_the_same_buffer_cannot_both_have_it() {
    let client = cpu!(1);
    let donate = donate(&client);
    for _ in 0..50 {
        let (a, b) = (put(&client, &[1.0; 1024], 0), put(&client, &[2.0; 1024], 0));
        let run = || {
            donate
                .execute(&[&a, &b])
                .map(|outputs| outputs[0].download_to::<f32>())
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let values: Vec<Vec<f32>> = results.into_iter().flatten().flatten().collect();
        assert!(
            a.is_deleted() && values.len() == 1,
            "{} threads got the buffer",
            values.len()
        );
        assert_eq!(values[0], [3.0; 1024]);
    }
}

#[test]
fn wrong_arguments_are_errors_that_name_them() {
    let client = cpu!(2);
    let add = add(&client);
    let a = put(&client, &[1.0; 4], 0);

    let error = message(add.execute(&[&a]));
    assert!(error.contains('2') && error.contains('1'), "{error}");
    assert!(matches!(
        add.execute(&[&a, &a, &a]),
        Err(Error::Count {
            expected: 2,
            got: 3,
            ..
        })
    ));

    // Same bytes, other type: XLA's CPU client would run this.
    let ints = client
        .upload(
            bytemuck::cast_slice(&[1i32; 4]),
            &Shape::new(DType::S32, [4]),
            0,
        )
        .unwrap();
    let error = message(add.execute(&[&a, &ints]));
    assert!(
        error.contains("argument 1") && error.contains("s32[4]") && error.contains("f32[4]"),
        "{error}"
    );
    let square = client
        .upload(bytemuck::cast_slice(&[1f32; 4]), &f32s(&[2, 2]), 0)
        .unwrap();
    let error = message(add.execute(&[&square, &a]));
    assert!(
        error.contains("argument 0") && error.contains("f32[2,2]"),
        "{error}"
    );

    let elsewhere = put(&client, &[1.0; 4], 1);
    assert!(matches!(
        add.execute(&[&a, &elsewhere]),
        Err(Error::ArgumentDevice {
            index: 1,
            expected: 0,
            got: 1,
            ..
        })
    ));
    let stranger = put(&cpu(1).unwrap(), &[1.0; 4], 0);
    assert!(matches!(
        add.execute(&[&a, &stranger]),
        Err(Error::ArgumentClient { index: 1, .. })
    ));
    assert!(matches!(
        add.execute_replicated(&[vec![&a, &a], vec![&a, &a]]),
        Err(Error::Count {
            expected: 1,
            got: 2,
            ..
        })
    ));

    // After all that the executable still works.
    assert_eq!(
        add.execute(&[&a, &a]).unwrap()[0]
            .download_to::<f32>()
            .unwrap(),
        [2.0; 4]
    );
}

#[test]
fn wrong_uploads_and_downloads_are_errors() {
    let client = cpu!(1);
    let error = message(client.upload(&[0; 15], &f32s(&[4]), 0));
    assert!(
        error.contains("15 bytes") && error.contains("f32[4]") && error.contains("16"),
        "{error}"
    );
    let error = message(client.upload(&[0; 16], &f32s(&[4]), 7));
    assert!(
        error.contains("no device 7") && error.contains("1 cpu"),
        "{error}"
    );
    assert!(message(client.upload(&[0; 16], &f32s(&[usize::MAX, 8]), 0)).contains("16 bytes"));
    let a = put(&client, &[1.0; 4], 0);
    let error = message(a.download_to::<i32>());
    assert!(error.contains("f32[4]") && error.contains("i32"), "{error}");
}

#[test]
fn bad_modules_are_errors() {
    let client = cpu!(1);
    let signature = || Signature::new([f32s(&[4]), f32s(&[4])], [f32s(&[4])]);
    let options = CompileOptions::default();
    for garbage in [&b""[..], b"garbage", &[0xff; 64]] {
        let error = client
            .compile(garbage, signature(), &options)
            .err()
            .unwrap();
        assert!(error.to_string().contains("compiling"), "{error}");
        // What the Rust side would stop must not bring the plugin down either.
        let past_the_check = CompileOptions {
            num_partitions: 2,
            ..Default::default()
        };
        assert!(
            client
                .compile(garbage, signature(), &past_the_check)
                .is_err()
        );
    }
    for text in [
        "",
        "not mlir",
        "module { func.func @main() { return %x : tensor<f32> } }",
    ] {
        assert!(
            client
                .compile_stablehlo(text.as_bytes(), signature(), &options)
                .is_err()
        );
    }
}

#[test]
fn a_signature_that_is_not_the_modules_is_an_error() {
    let client = cpu!(1);
    let module = add(&client).optimized_hlo().unwrap();
    let signature = Signature::of_module(&module).unwrap();
    assert_eq!(
        signature,
        Signature::new([f32s(&[4]), f32s(&[4])], [f32s(&[4])])
    );
    let options = CompileOptions::default();
    let again = client
        .compile(&module, signature.clone(), &options)
        .unwrap();
    let a = put(&client, &[1.0; 4], 0);
    assert_eq!(
        again.execute(&[&a, &a]).unwrap()[0]
            .download_to::<f32>()
            .unwrap(),
        [2.0; 4]
    );

    let mut wrong = signature.clone();
    wrong.inputs[1] = Shape::new(DType::S32, [4]);
    let error = message(client.compile(&module, wrong, &options));
    assert!(
        error.contains("input 1") && error.contains("f32[4]") && error.contains("s32[4]"),
        "{error}"
    );
    let mut short = signature.clone();
    short.inputs.pop();
    assert!(message(client.compile(&module, short, &options)).contains("2 inputs"));
    // Outputs are known to the plugin too, whatever the module came as.
    let mut wrong = signature.clone();
    wrong.outputs[0] = f32s(&[2, 2]);
    let error = message(client.compile_stablehlo(ADD.as_bytes(), wrong.clone(), &options));
    assert!(
        error.contains("output 0") && error.contains("f32[4]") && error.contains("f32[2,2]"),
        "{error}"
    );
    assert!(message(client.load(&again.serialize().unwrap(), wrong)).contains("output 0"));
    // A loaded executable's inputs, and StableHLO's, are compared too: same bytes, other type.
    let mut wrong = signature.clone();
    wrong.inputs[0] = Shape::new(DType::U32, [4]);
    for error in [
        message(client.load(&again.serialize().unwrap(), wrong.clone())),
        message(client.compile_stablehlo(ADD.as_bytes(), wrong, &options)),
    ] {
        assert!(
            error.contains("input 0") && error.contains("u32[4]"),
            "{error}"
        );
    }
    let mut many = signature;
    many.outputs.push(f32s(&[4]));
    assert!(
        message(client.compile_stablehlo(ADD.as_bytes(), many, &options)).contains("1 outputs")
    );
}

#[test]
fn options_reach_the_compiler_and_wrong_ones_are_named() {
    let client = cpu!(1);
    let compile = |options: CompileOptions| {
        client.compile_stablehlo(
            ADD.as_bytes(),
            Signature::new([f32s(&[4]), f32s(&[4])], [f32s(&[4])]),
            &options,
        )
    };
    let good = CompileOptions::default()
        .with("xla_cpu_enable_fast_math", OverrideValue::Bool(false))
        .with("xla_cpu_prefer_vector_width", OverrideValue::Int(512))
        .with(
            "xla_disable_hlo_passes",
            OverrideValue::String("transpose-folding".into()),
        );
    compile(good).unwrap();
    let error = message(compile(
        CompileOptions::default().with("xla_no_such_option", OverrideValue::Bool(true)),
    ));
    assert!(error.contains("xla_no_such_option"), "{error}");
    assert!(
        compile(CompileOptions::default().with(
            "xla_cpu_enable_fast_math",
            OverrideValue::String("true".into())
        ))
        .is_err()
    );
    assert!(
        compile(CompileOptions::replicated(5)).is_err(),
        "five replicas on one device"
    );
    assert!(message(compile(CompileOptions::replicated(0))).contains("0 replicas"));
    let crooked = CompileOptions {
        device_assignment: Some(vec![vec![0, 1]]),
        ..Default::default()
    };
    assert!(message(compile(crooked)).contains("device assignment"));
    let plugin = client.plugin();
    let error = message(Client::create(
        plugin,
        &[("no_such_option".into(), OptionValue::Bool(true))],
    ));
    assert!(error.contains("no_such_option"), "{error}");
}
