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
    /// The beginning of a message about it: the Kubernetes object, if it is one.
    pub fn object(&self) -> String {
        match self.document.as_str() {
            "" => String::new(),
            document => format!("{document}: "),
        }
    }
}
