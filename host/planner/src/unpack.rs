//! Kernels as distributions ship them, and the Image that is inside: compressed, or in an EFI application that unpacks
//! itself (zboot), which needs firmware that a guest does not have.

use std::borrow::Cow;
use std::io::Read;

/// Largest size of an Image in bytes.
const MOST: u64 = 1 << 30;

/// Compression formats by their first bytes, including those that cannot be unpacked.
const KINDS: [(&[u8], Kind); 8] = [
    (b"\x1f\x8b", Kind::Gzip),
    (b"\x28\xb5\x2f\xfd", Kind::Zstandard),
    (b"\xfd7zXZ\0", Kind::Other("xz")),
    (b"\x5d\0\0", Kind::Other("lzma")),
    (b"BZh", Kind::Other("bzip2")),
    (b"\x02\x21\x4c\x18", Kind::Other("lz4")),
    (b"\x04\x22\x4d\x18", Kind::Other("lz4")),
    (b"\x89LZO", Kind::Other("lzo")),
];

#[derive(Clone, Copy)]
enum Kind {
    Gzip,
    Zstandard,
    Other(&'static str),
}

/// The Image in the bytes of a file, which may be one already.
///
/// # Errors
/// Why what is inside cannot be had.
pub(super) fn kernel(bytes: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let packed = zboot(bytes)?.unwrap_or(bytes);
    let kind = KINDS.iter().find(|(start, _)| packed.starts_with(start));
    match kind {
        Some((_, Kind::Gzip)) => unpack("gzip", flate2::read::GzDecoder::new(packed)),
        Some((_, Kind::Zstandard)) => {
            let broken = |why| format!("it is compressed with zstd, and broken: {why}");
            let decoder = ruzstd::decoding::StreamingDecoder::new(packed);
            unpack("zstd", decoder.map_err(|why| broken(why.to_string()))?)
        }
        Some((_, Kind::Other(name))) => {
            Err(format!("it is compressed with {name}; unpack it first"))
        }
        None => Ok(Cow::Borrowed(packed)),
    }
}

fn unpack(name: &str, from: impl Read) -> Result<Cow<'static, [u8]>, String> {
    let mut image = Vec::new();
    from.take(MOST + 1)
        .read_to_end(&mut image)
        .map_err(|why| format!("it is compressed with {name}, and broken: {why}"))?;
    if image.len() as u64 > MOST {
        return Err("unpacked it is larger than 1 GiB".to_owned());
    }
    Ok(Cow::Owned(image))
}

/// Payload of an EFI zboot image of Linux; none if the bytes are not one
/// (drivers/firmware/efi/libstub/zboot-header.S: `zimg` at 4, then offset and size).
fn zboot(bytes: &[u8]) -> Result<Option<&[u8]>, String> {
    if !bytes.starts_with(b"MZ") || bytes.get(4..8) != Some(b"zimg") {
        return Ok(None);
    }
    let word = |at: usize| {
        let word = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(word) as usize)
    };
    let range = word(8).zip(word(12));
    let inner = range.and_then(|(start, size)| bytes.get(start..start.checked_add(size)?));
    inner
        .map(Some)
        .ok_or_else(|| "it is an EFI zboot image that is cut off".to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("to memory");
        encoder.finish().expect("to memory")
    }

    fn zstandard(bytes: &[u8]) -> Vec<u8> {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        ruzstd::encoding::compress_to_vec(bytes, level)
    }

    fn in_zboot(inner: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 96];
        file[..2].copy_from_slice(b"MZ");
        file[4..8].copy_from_slice(b"zimg");
        file[8..12].copy_from_slice(&96u32.to_le_bytes());
        file[12..16].copy_from_slice(&(inner.len() as u32).to_le_bytes());
        file.extend(inner);
        // Size of the Image and sections behind it.
        file.extend([0x55; 40]);
        file
    }

    #[test]
    fn an_image_comes_out_of_whatever_it_is_in() {
        let image: Vec<u8> = (0..100_000u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect();
        for file in [
            image.clone(),
            gzip(&image),
            zstandard(&image),
            in_zboot(&image),
            in_zboot(&gzip(&image)),
            in_zboot(&zstandard(&image)),
        ] {
            assert_eq!(kernel(&file).as_deref(), Ok(&image[..]));
        }
    }

    #[test]
    fn what_is_broken_says_so() {
        let image = vec![7; 100_000];
        for file in [
            gzip(&image)[..60].to_vec(),
            zstandard(&image)[..12].to_vec(),
            b"\x1f\x8bnonsense".to_vec(),
            b"\x28\xb5\x2f\xfd\xff".to_vec(),
        ] {
            let why = kernel(&file).expect_err("broken");
            assert!(why.contains("and broken: "), "{why}");
        }
        let cut = in_zboot(&gzip(&image))[..120].to_vec();
        assert!(kernel(&cut).expect_err("cut off").contains("cut off"));
        let wild = [b"MZ\0\0zimg".as_slice(), &[0xff; 8], &[0; 80]].concat();
        assert!(kernel(&wild).expect_err("beyond").contains("cut off"));
        let packed = kernel(b"\xfd7zXZ\0rest").expect_err("xz");
        assert!(packed.contains("xz; unpack it first"), "{packed}");
    }
}
