// Package supervisor runs the plugins of a host: it finds them in the plugin
// directory, verifies them, starts them, watches their health, restarts them, and
// finds them again after a restart of the host. Callers borrow a connection with
// Acquire.
//
// It imports the SDK's wire and protocol packages and host/internal/system/process. It
// knows no kind: the catalog makes typed clients of its connections.
//
// What must stay true: no plugin runs twice and none is left behind, whatever
// instant the host dies at; what was verified is what runs; a failure ends only
// the process that failed; and one broken plugin holds up neither the host's
// start nor the other plugins. DESIGN.md tells how.
package supervisor
