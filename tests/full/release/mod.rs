//! The files of `make release`, as their users get them. `make release-test` runs this; it needs root for the chroot.
//!
//! | module | what belongs there |
//! |---|---|
//! | `files` | checksums, the archives' members, the programs, bills of materials, licences |
//! | `images` | pushed to a registry and pulled back: user, entrypoint, size, the program on the image's files alone |
//! | `artifacts` | where the files are; running commands |

mod artifacts;
mod files;
mod images;
