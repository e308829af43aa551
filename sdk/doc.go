// Package sdk turns an implementation of a kind into a pannier plugin:
//
//	func main() {
//		sdk.Main(sdk.Info{Name: "my-storage", Version: "1.0.0"}, storage.Plugin(&impl{}))
//	}
//
// A kind is a package below sdk with one small Go interface (sdk/storage); the
// author never sees protobuf, TLS or go-plugin. What an implementation can do
// besides its kind it says with the optional interfaces: Validator, Configurer,
// HealthReporter and io.Closer. It logs with Logger.
//
// What happens in a plugin, an operator learns by Emit: `pannier events -f` shows it as
// it happens. The process keeps its newest events until the host has them, over a
// restart of the host too, and tells the last ones before it ends. Emit is for what
// happened ("driver-lost"), HealthReporter for what is so ("no driver answers"), Logger
// for who looks into a fault. None of them may hold a secret.
//
// It imports neither host nor cluster. A plugin keeps no state that must last:
// its process can be replaced between any two calls. DESIGN.md tells why things
// are as they are.
package sdk
