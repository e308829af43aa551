package sdk

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// Main is the whole main function of a plugin. It serves p to the host that started the process. It never returns:
// the process exits when the host asks for it, on SIGTERM, or when no host has attended it for its orphan timeout.
//
// Main changes the process as follows:
//
//   - Other processes of the plugin's user cannot read its memory, and it leaves no core files, since it holds keys and
//     tokens. A debugger cannot attach to it either: see below.
//   - The default logger of log/slog, and with it that of log, writes to the host as Logger does, unless
//     slog.SetDefault was called before.
//   - What it prints to os.Stdout, os.Stderr or descriptor 1 goes to the host's log of the plugin.
//   - SIGTERM ends it as the host's Stop does, and SIGINT is ignored: it is for others in the terminal.
//
// With PANNIER_PLUGIN_DEBUG=1 in the environment and no host, the process waits for calls of a host that was
// started before or after it. Use this to run a plugin under a debugger.
func Main(info Info, p Plugin) {
	if os.Getenv(wire.Handshake.MagicCookieKey) == "" && os.Getenv(wire.EnvDebug) != "" {
		os.Exit(serveUnattended(info, p))
	}
	if os.Getenv(wire.Handshake.MagicCookieKey) != wire.Handshake.MagicCookieValue {
		fmt.Fprintf(os.Stderr, "%s %s is a plugin for pannier (%s) and is not run by hand.\n"+
			"Put it into the agent's plugin_dir; `pannier plugin status` then shows it.\n", info.Name, info.Version, p.Kind)
		os.Exit(1)
	}
	if err := keepPrivate(); err != nil {
		fmt.Fprintf(os.Stderr, "keep the plugin's memory private: %v\n", err)
		os.Exit(1)
	}
	if slog.Default() == goDefault {
		slog.SetDefault(slogTo(stderr, level()))
	}
	listeners.inherit()
	if socket := os.Getenv(wire.EnvDebugSocket); socket != "" {
		os.Exit(relay(socket))
	}
	os.Exit(serve(&server{info: info, plugin: p}))
}

// goDefault is log/slog's default logger as long as the author has not set one.
var goDefault = slog.Default()

// keepPrivate keeps the memory of the plugin, with its keys and tokens, from other processes of its user, such as
// workloads, and out of core files (prctl(2), PR_SET_DUMPABLE).
func keepPrivate() error {
	return errors.Join(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}))
}

func serve(adapter *server) (exitCode int) {
	log := Logger()
	life := newLifetime(log)
	adapter.life = life
	closeImpl := sync.OnceValue(func() error { return closePlugin(adapter.plugin) })
	life.finish = func() { _ = closeImpl() } // its error is reported below

	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		life.stop("SIGTERM")
	}()

	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.Plugins(adapter.register),
		TLSProvider:      loadTLS,
		GRPCServer:       adapter.newServer,
		Logger:           log.Named("serve"),
	})
	if !adapter.registered {
		return 1 // go-plugin has logged why it could not serve
	}
	if err := closeImpl(); err != nil {
		log.Error("close the plugin", "error", err)
		return 1
	}
	return 0
}

func closePlugin(p Plugin) error {
	if p.Finish != nil {
		p.Finish()
	}
	if c, ok := As[io.Closer](p.Impl); ok {
		return c.Close()
	}
	return nil
}

// server makes the process's gRPC server for go-plugin.
type server struct {
	info       Info
	plugin     Plugin
	life       *lifetime
	registered bool
	// forward, if set, handles the calls of all services except PluginService.
	forward grpc.StreamHandler
}

// newServer is go-plugin's ServeConfig.GRPCServer.
func (s *server) newServer(opts []grpc.ServerOption) *grpc.Server {
	calls := &interceptor{log: Logger(), life: s.life, relays: s.forward != nil}
	if s.forward != nil {
		opts = append(opts, grpc.UnknownServiceHandler(s.forward), grpc.ForceServerCodecV2(frames{}))
	}
	srv := grpc.NewServer(append(opts,
		grpc.UnaryInterceptor(calls.unary),
		grpc.StreamInterceptor(calls.stream),
	)...)
	s.life.serving(srv)
	return srv
}

// register adds the wire's and the kind's services to this process's server.
func (s *server) register(srv *grpc.Server) {
	if s.forward == nil {
		events, host := newEventService(s.life.log, emitted), newHostService(toHost, metrics, listeners)
		pluginv1.RegisterEventServiceServer(srv, events)
		pluginv1.RegisterHostServiceServer(srv, host)
		s.life.flush = append(s.life.flush, events.finish, recorded.send, host.finish)
	}
	pluginv1.RegisterPluginServiceServer(srv, &service{info: s.info, plugin: s.plugin, life: s.life})
	s.plugin.Register(srv)
	s.registered = true
}

// NewServer makes the gRPC server that Main serves, without the process around it, for tests of a plugin (see
// sdk/plugintest). It needs no host that attends it. stop ends it as
// a host's Stop does, and returns at once; Serve returns when the calls in flight have ended.
func NewServer(info Info, p Plugin) (srv *grpc.Server, stop func()) {
	return inProcess(info, p, "the test is over")
}

// inProcess is NewServer; why is the reason that stop gives.
func inProcess(info Info, p Plugin, why string) (srv *grpc.Server, stop func()) {
	life := newLifetime(Logger())
	life.attend(0)
	calls := &interceptor{log: Logger(), life: life}
	srv = grpc.NewServer(grpc.UnaryInterceptor(calls.unary), grpc.StreamInterceptor(calls.stream))
	adapter := &server{info: info, plugin: p, life: life}
	adapter.register(srv)
	life.serving(srv)
	return srv, func() { life.stop(why) }
}

// Logger is the plugin's logger. It writes structured JSON, which the host copies into its own log under the
// plugin's name, at the host's level.
var Logger = sync.OnceValue(func() hclog.Logger {
	byHand := os.Getenv(wire.Handshake.MagicCookieKey) == "" // for people to read
	return hclog.New(&hclog.LoggerOptions{Level: level(), Output: stderr, JSONFormat: !byHand})
})

// level is the least severe one that the host wants.
func level() hclog.Level {
	if l := hclog.LevelFromString(os.Getenv(wire.EnvLogLevel)); l != hclog.NoLevel {
		return l
	}
	return hclog.Info
}
