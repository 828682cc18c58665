//! smoke
use cadenza_core::{agent::Agent, provider::{ModelSpec, Scripted}, runtime::{Runtime, options::Options}, value::{Map, Value}};
fn main() {
    let options = Options { model: Some(ModelSpec::Provider(std::sync::Arc::new(Scripted::program("context.total = (context.total or 0) + args[1]\nreturn context.total")))), ..Options::default() };
    let rt = Runtime::builder().options(options).build().unwrap();
    let a: Agent = rt.agent("calculator", Options::default()).unwrap();
    for i in 0..5 { let o = a.call("add", vec![Value::Int(i)], Map::new()).unwrap(); println!("{}", Value::Map(o.to_map())); }
    println!("{:?}", a);
    for c in rt.calls() { let mut s = String::new(); cadenza_core::log::line(&c, &mut s); println!("{s}"); }
}
