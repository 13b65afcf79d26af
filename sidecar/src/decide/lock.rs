//! Locks a mutex under which no code panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it. No code under the locks of this folder panics, so they are never poisoned.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
