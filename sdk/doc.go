// Package sdk turns an implementation of a kind into a pannier plugin:
//
//	func main() {
//		sdk.Main(sdk.Info{Name: "my-storage", Version: "1.0.0"}, storage.Plugin(&impl{}))
//	}
//
// Each kind is a package below sdk with one small Go interface (such as sdk/storage); an author never sees
// protobuf, TLS or go-plugin. An implementation can also have the optional interfaces Validator, Configurer,
// HealthReporter and io.Closer. It logs with Logger.
//
// Emit reports to an operator what happened in a plugin: `pannier events -f` shows it at once. The process keeps
// its newest events until the host has them, even while the host restarts, and delivers the last ones before it
// ends. Use Emit for what happened ("driver-lost"), HealthReporter for the current state ("no driver answers"),
// and Logger for details that help to find a fault. None of them may contain a secret.
//
// HostState is a small state that the host keeps for the plugin; NewCounter, NewGauge and NewHistogram make metrics
// that the host exposes, and Span spans in the trace of the host's call.
//
// A plugin must not keep state that has to last: its process can be replaced between any two calls. DESIGN.md
// gives the reasons for the design.
package sdk
