package sdk

import (
	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk/wire"
)

// NewServer makes the gRPC server that Main serves, without a process round it: for
// tests of a plugin, see sdk/plugintest. It needs no host that attends it, and what
// the plugin prints goes where it went. stop ends it as a host's Stop does, and returns
// at once: Serve returns when the calls in flight have ended.
func NewServer(info Info, p Plugin) (srv *grpc.Server, stop func()) {
	return inProcess(info, p, "the test is over")
}

// inProcess is NewServer, where why is the reason to stop.
func inProcess(info Info, p Plugin, why string) (srv *grpc.Server, stop func()) {
	life := newLifetime(Logger())
	life.attend(0)
	calls := &interceptor{log: Logger(), life: life}
	calls.stdio.Do(func() {}) // the process's output stays what it is
	srv = grpc.NewServer(grpc.UnaryInterceptor(calls.unary), grpc.StreamInterceptor(calls.stream))
	adapter := &server{info: info, plugin: p, life: life}
	_ = adapter.register(wire.Version, srv) // cannot fail
	life.serving(srv)
	return srv, func() { life.stop(why) }
}
