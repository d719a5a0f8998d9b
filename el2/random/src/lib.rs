//! The block function behind all random numbers. A separate crate, because it is the only code of
//! EL2 that is compiled for speed and not for size: a guest's kernel asks for random numbers at any
//! time, and that exit must not be long.
#![no_std]
#![forbid(unsafe_code)]

use chacha20::ChaChaCore;
use chacha20::cipher::consts::U6;
use chacha20::cipher::{KeyIvInit, StreamCipherCore};

/// Returns 64 bytes derived from a key and a purpose: block 0 of ChaCha with 12 rounds (Bernstein,
/// 2008), which the Rust libraries use to generate random numbers; the best known attack reaches 7
/// rounds.
pub fn block(key: &[u8; 32], purpose: &[u8; 12]) -> [u8; 64] {
    let mut bytes = [0; 64];
    // 6 double rounds.
    let mut cipher = ChaChaCore::<U6>::new(key.into(), purpose.into());
    cipher.write_keystream_block((&mut bytes).into());
    bytes
}

#[cfg(test)]
mod tests {
    /// draft-strombergson-chacha-test-vectors-01, TC1, 12 rounds, 256 bits: all zeros.
    #[test]
    fn it_is_the_cipher_of_the_literature() {
        let bytes = super::block(&[0; 32], &[0; 12]);
        assert_eq!(bytes[..8], [0x9b, 0xf4, 0x9a, 0x6a, 0x07, 0x55, 0xf9, 0x53]);
        assert_eq!(
            bytes[24..32],
            [0x7e, 0x00, 0x89, 0xa5, 0x2e, 0xae, 0x15, 0x5f]
        );
    }
}
