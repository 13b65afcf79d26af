//! The file and the Kubernetes object in which something was found.

/// Where something was found.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The file.
    pub file: String,
    /// The document, such as `WasmPlugin shop/sluicegate`; empty if it is not a Kubernetes object.
    pub document: String,
    /// The document's namespace.
    pub namespace: String,
}

impl Source {
    /// The Kubernetes object, before what is said of it.
    pub fn object(&self) -> String {
        match self.document.as_str() {
            "" => String::new(),
            document => format!("{document}: "),
        }
    }
}
