use super::Expression;
pub(super) fn expression(_: &Expression) -> String {
    String::new()
}
