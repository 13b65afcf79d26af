//! Random numbers that nobody can guess, from the operating system. `None` if its source fails.

/// 128 bits.
pub fn secret() -> Option<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(u128::from_ne_bytes(bytes))
}

/// A number that every JSON reader keeps whole: from 1 to 2^53 - 1.
pub fn number() -> Option<u64> {
    let bits = secret()? >> (128 - 53);
    Some(u64::try_from(bits).unwrap_or(0).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_secrets_are_alike() {
        let drawn: std::collections::BTreeSet<_> = (0..1_000).map(|_| secret()).collect();
        assert_eq!(drawn.len(), 1_000);
    }
}
