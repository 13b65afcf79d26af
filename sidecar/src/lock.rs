//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Locks, even if a thread panicked while it held the lock. Only for values that are consistent after every step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks like [`lock`], unless another thread holds the lock.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
