//! Images from layers, without Docker.
