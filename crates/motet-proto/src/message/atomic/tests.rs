use super::*;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The result for one element.
fn on<const N: usize>(
    operation: Operation,
    datatype: Datatype,
    mut target: [u8; N],
    operand: [u8; N],
    compare: [u8; N],
) -> [u8; N] {
    let compare = if operation.compares() { &compare[..] } else { &[] };
    let operand = if operation == Operation::Read { &[][..] } else { &operand };
    let atomic = Atomic { operation, datatype, count: 1, operand, compare };
    let (before, mut result) = (target, [0; N]);
    assert_eq!(atomic.apply(&mut target, &mut result), Ok(()));
    assert_eq!(result, before, "the value before is the result");
    target
}

/// Compares with the operators of the language, for values at which types differ.
macro_rules! against_the_language {
    ($($name:ident, $type:ty, $datatype:expr, $values:expr;)*) => { $(
        #[test]
        fn $name() {
            let values: &[$type] = &$values;
            for &target in values {
                for &operand in values {
                    for &compare in values {
                        let truth = |truth: bool| if truth { 1 as $type } else { 0 as $type };
                        let swap = |swap: bool| if swap { operand } else { target };
                        let zero = 0 as $type;
                        let expected = [
                            (Operation::Minimum, if operand < target { operand } else { target }),
                            (Operation::Maximum, if operand > target { operand } else { target }),
                            (Operation::LogicalAnd, truth(target != zero && operand != zero)),
                            (Operation::LogicalOr, truth(target != zero || operand != zero)),
                            (Operation::LogicalXor, truth((target != zero) != (operand != zero))),
                            (Operation::Replace, operand),
                            (Operation::Read, target),
                            (Operation::SwapEqual, swap(compare == target)),
                            (Operation::SwapUnequal, swap(compare != target)),
                            (Operation::SwapLessOrEqual, swap(compare <= target)),
                            (Operation::SwapLess, swap(compare < target)),
                            (Operation::SwapGreaterOrEqual, swap(compare >= target)),
                            (Operation::SwapGreater, swap(compare > target)),
                        ];
                        for (operation, value) in expected {
                            let bytes = [target, operand, compare].map(<$type>::to_le_bytes);
                            let got = on(operation, $datatype, bytes[0], bytes[1], bytes[2]);
                            assert_eq!(got, value.to_le_bytes(), "{operation:?} {target} {operand} {compare}");
                        }
                    }
                }
            }
        }
    )* };
}

against_the_language! {
    i8_, i8, Datatype::I8, [0, 1, -1, i8::MIN, i8::MAX, 5];
    u8_, u8, Datatype::U8, [0, 1, 127, 128, u8::MAX];
    i16_, i16, Datatype::I16, [0, 1, -1, i16::MIN, i16::MAX, 300];
    u16_, u16, Datatype::U16, [0, 1, 0x7fff, 0x8000, u16::MAX];
    i32_, i32, Datatype::I32, [0, 1, -1, i32::MIN, i32::MAX, 70_000];
    u32_, u32, Datatype::U32, [0, 1, 1 << 31, u32::MAX];
    i64_, i64, Datatype::I64, [0, 1, -1, i64::MIN, i64::MAX, 1 << 40];
    u64_, u64, Datatype::U64, [0, 1, 1 << 63, u64::MAX];
    f32_, f32, Datatype::F32, [0.0, -0.0, 1.0, -1.5, f32::INFINITY, f32::NAN, f32::MIN_POSITIVE];
    f64_, f64, Datatype::F64, [0.0, -0.0, 1.0, -1.5, f64::NEG_INFINITY, f64::NAN, 1e300];
}

#[test]
fn integers_wrap_and_bits_combine() {
    for (target, operand) in [(i32::MAX, 1), (-7, 3), (i32::MIN, -1), (0x0f0f, 0x00ff)] {
        let mask: i32 = 0x0ff0;
        for (operation, value) in [
            (Operation::Sum, target.wrapping_add(operand)),
            (Operation::Product, target.wrapping_mul(operand)),
            (Operation::BitAnd, target & operand),
            (Operation::BitOr, target | operand),
            (Operation::BitXor, target ^ operand),
            (Operation::SwapMasked, operand & mask | target & !mask),
        ] {
            let bytes = [target, operand, mask].map(i32::to_le_bytes);
            assert_eq!(on(operation, Datatype::I32, bytes[0], bytes[1], bytes[2]), value.to_le_bytes());
        }
    }
    let sum = on(Operation::Sum, Datatype::F64, 0.5_f64.to_le_bytes(), 0.25_f64.to_le_bytes(), [0; 8]);
    let product = on(Operation::Product, Datatype::F32, 0.5_f32.to_le_bytes(), 3_f32.to_le_bytes(), [0; 4]);
    assert_eq!((sum, product), (0.75_f64.to_le_bytes(), 1.5_f32.to_le_bytes()));
}

#[test]
fn elements_of_a_row_are_independent() {
    let operand: Vec<u8> = [1_u16, 2, 0xffff].iter().flat_map(|n| n.to_le_bytes()).collect();
    let (operation, datatype, count) = (Operation::Sum, Datatype::U16, 3);
    let atomic = Atomic { operation, datatype, count, operand: &operand, compare: &[] };
    let mut target: Vec<u8> = [0xffff_u16, 1, 1].iter().flat_map(|n| n.to_le_bytes()).collect();
    assert_eq!(atomic.apply(&mut target, &mut []), Ok(()));
    assert_eq!(target, [0, 0, 3, 0, 0, 0]);
}

#[test]
fn invalid_atomic_is_refused_and_does_nothing() {
    let good = Atomic {
        operation: Operation::SwapEqual,
        datatype: Datatype::U32,
        count: 2,
        operand: &[1; 8],
        compare: &[2; 8],
    };
    assert_eq!(good.check(4, false), Ok(()));
    for at in [1, 2, 3, 5, u64::MAX] {
        assert_eq!(good.check(at, false), Err(InvalidAtomic), "no multiple: {at}");
    }
    let bad = [
        Atomic { count: 0, operand: &[], compare: &[], ..good },
        Atomic { count: 3, ..good },
        Atomic { count: u32::MAX, ..good },
        Atomic { operand: &[1; 7], ..good },
        Atomic { compare: &[], ..good },
        Atomic { operation: Operation::Sum, ..good },
        Atomic { operation: Operation::Read, operand: &[], compare: &[], ..good },
        Atomic { operation: Operation::SwapMasked, datatype: Datatype::F32, ..good },
        Atomic { operation: Operation::BitOr, datatype: Datatype::F64, count: 1, compare: &[], ..good },
    ];
    for bad in bad {
        assert_eq!(bad.check(0, false), Err(InvalidAtomic), "{bad:?}");
        let mut target = vec![9; bad.length().min(64)];
        assert_eq!(bad.apply(&mut target, &mut []), Err(InvalidAtomic));
        assert!(target.iter().all(|&byte| byte == 9));
    }
    for length in [0, 7, 9] {
        assert_eq!(good.apply(&mut vec![0; length], &mut []), Err(InvalidAtomic));
    }
    assert_eq!(good.apply(&mut [0; 8], &mut [0; 4]), Err(InvalidAtomic));
}

#[test]
fn numbers_of_operations_and_types_are_their_indices() {
    assert!(Operation::ALL.iter().enumerate().all(|(at, &operation)| operation as usize == at));
    assert!(Datatype::ALL.iter().enumerate().all(|(at, &datatype)| datatype as usize == at));
}

#[test]
fn apply_shared_agrees_with_apply() {
    let words: &'static [AtomicU64] = Box::leak((0..8).map(AtomicU64::new).collect());
    let memory = SharedBytes::of_words(words);
    let mut private = vec![0; memory.length()];
    memory.read(0, &mut private).unwrap();
    let operand: Vec<u8> = (0..24_u8).map(|at| at.wrapping_mul(83)).collect();
    let compare: Vec<u8> = (0..24_u8).map(|at| at.wrapping_mul(47) ^ 0x55).collect();
    for (round, operation) in Operation::ALL.into_iter().cycle().take(60).enumerate() {
        for datatype in Datatype::ALL {
            let length = 3 * datatype.size();
            let operand = if operation == Operation::Read { &[] } else { &operand[..length] };
            let compare = if operation.compares() { &compare[..length] } else { &[] };
            let atomic = Atomic { operation, datatype, count: 3, operand, compare };
            let at = round % 5 * 8;
            let [mut one, mut other] = [vec![0; length], vec![0; length]];
            let expected = atomic.apply(&mut private[at..at + length], &mut one);
            assert_eq!(atomic.apply_shared(&memory, at, &mut other), expected);
            let mut all = vec![0; memory.length()];
            memory.read(0, &mut all).unwrap();
            assert_eq!((&all, one), (&private, other), "{operation:?} {datatype:?}");
            if operation == Operation::Read || expected.is_err() {
                continue;
            }
            for (at, result) in [(64, 0), (64 - length + datatype.size(), 0), (usize::MAX, 0), (0, 1)] {
                let refused = atomic.apply_shared(&memory, at, &mut vec![0; result]);
                assert!(refused == Err(InvalidAtomic) || length == 1, "{at}");
            }
            memory.read(0, &mut all).unwrap();
            assert_eq!(all, private, "nothing is done");
        }
    }
}

#[test]
fn misaligned_shared_memory_is_refused_whole() {
    let words: &'static [AtomicU64] = Box::leak((0..3).map(|_| AtomicU64::new(0)).collect());
    let whole = SharedBytes::of_words(words);
    // A region that begins in the middle of a word.
    let part = whole.part(4, 16).unwrap();
    let (operation, datatype, count) = (Operation::Sum, Datatype::U64, 2);
    let atomic = Atomic { operation, datatype, count, operand: &[1; 16], compare: &[] };
    assert_eq!(atomic.apply_shared(&part, 0, &mut []), Err(InvalidAtomic));
    assert!(words.iter().all(|word| word.load(Relaxed) == 0));
    let atomic = Atomic { datatype: Datatype::U32, ..atomic };
    assert_eq!(Atomic { operand: &[1; 8], ..atomic }.apply_shared(&part, 8, &mut []), Ok(()));
    assert_eq!(words[1].load(Relaxed), 0x0101_0101 << 32);
}
