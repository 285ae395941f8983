//! The values that go from machine to machine. Macros, because the test and the foreign program compile the buffers separately.

/// Puts the values.
#[macro_export]
macro_rules! fill {
    ($buffer:expr) => {
        $buffer.put(200u8).put(-100i8).put(60_001u16).put(-30_001i16).put(4_000_000_001u32).put(-2_000_000_001i32);
        $buffer.put((1u64 << 63) + 5).put(i64::MIN + 9).put(1.5f32).put(-2.2500001f64).put_bool(true).put_long(-77_777);
        $buffer.put_array(&[1i16, -2, 300]).put_array(&[0.1f64, 0.2, -1e300]).put_str("Grüße").put_block(&[1, 2, 3]);
    };
}

/// Gets the values.
#[macro_export]
macro_rules! check {
    ($reader:expr) => {
        assert_eq!(($reader.get::<u8>(), $reader.get::<i8>()), (Ok(200), Ok(-100)));
        assert_eq!(($reader.get::<u16>(), $reader.get::<i16>()), (Ok(60_001), Ok(-30_001)));
        assert_eq!(($reader.get::<u32>(), $reader.get::<i32>()), (Ok(4_000_000_001), Ok(-2_000_000_001)));
        assert_eq!(($reader.get::<u64>(), $reader.get::<i64>()), (Ok((1 << 63) + 5), Ok(i64::MIN + 9)));
        assert_eq!(($reader.get::<f32>(), $reader.get::<f64>()), (Ok(1.5), Ok(-2.2500001)));
        assert_eq!(($reader.get_bool(), $reader.get_long()), (Ok(true), Ok(-77_777)));
        assert_eq!($reader.get_array::<i16>(), Ok(vec![1, -2, 300]));
        assert_eq!($reader.get_array::<f64>(), Ok(vec![0.1, 0.2, -1e300]));
        assert_eq!(($reader.get_str(), $reader.get_block()), (Ok("Grüße"), Ok(&[1u8, 2, 3][..])));
        assert_eq!($reader.end(), Ok(()));
    };
}
