//! OpenTelemetry's own variables, which turn tracing on.

use std::env::var;

/// The variables that name the collector; the first that is set counts.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// The collector's URL, with the name of the variable that has it; `None` if the environment does not turn tracing on.
pub fn collector() -> Option<(&'static str, String)> {
    let disabled = var("OTEL_SDK_DISABLED").is_ok_and(|on| on.eq_ignore_ascii_case("true"));
    let none = var("OTEL_TRACES_EXPORTER").is_ok_and(|exporter| exporter == "none");
    first_set(ENDPOINTS).filter(|_| !disabled && !none)
}

/// The first of the variables that is set and not empty, with its name.
pub fn first_set(names: [&'static str; 2]) -> Option<(&'static str, String)> {
    let set = |name| Some((name, var(name).ok().filter(|value| !value.is_empty())?));
    names.into_iter().find_map(set)
}
