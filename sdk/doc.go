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
// It imports neither host nor cluster. A plugin keeps no state that must last:
// its process can be replaced between any two calls. DESIGN.md tells why things
// are as they are.
package sdk
