package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// serveUnattended serves p without a host, for a plugin that its author runs, usually under a debugger. It prints
// what an agent needs in its environment to use it. The agent then starts the plugin's file as usual, and that
// process passes all calls on to this one (see relay). This one can be halted and restarted without the agent
// replacing it.
//
// The socket has no TLS: its directory is accessible only to the user.
func serveUnattended(info Info, p Plugin) (exitCode int) {
	fail := func(err error) int {
		fmt.Fprintf(os.Stderr, "%s cannot be debugged: %v\n", info.Name, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "pannier-debug-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "plugin.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fail(err)
	}
	srv, stop := inProcess(info, p, "a signal")
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-end
		stop()
	}()
	attach, err := json.Marshal(map[string]string{info.Name: socket})
	if err != nil {
		return fail(err)
	}
	fmt.Fprintf(os.Stdout,
		"%s %s (%s) waits for calls, as process %d. With its file in plugin_dir, start an agent with:\n\n\t%s='%s'\n\n",
		info.Name, info.Version, p.Kind, os.Getpid(), wire.EnvReattach, attach)
	if err := srv.Serve(listener); err != nil {
		return fail(err)
	}
	if err := closePlugin(p); err != nil {
		return fail(err)
	}
	return 0
}

// findDebugged bounds how long relay looks for the debugged process.
const findDebugged = 5 * time.Second

// relay serves the plugin that is being debugged behind a socket to the host. The lifetime and the health are this
// process's own, so that the other one may be halted.
func relay(socket string) (exitCode int) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return relayFailed(socket, err)
	}
	defer conn.Close()
	d := &debugged{conn: conn, api: pluginv1.NewPluginServiceClient(conn)}
	ctx, cancel := context.WithTimeout(context.Background(), findDebugged)
	defer cancel()
	info, err := d.api.Info(ctx, &pluginv1.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return relayFailed(socket, err)
	}
	stream, err := d.api.Attend(context.Background(), &pluginv1.AttendRequest{})
	if err != nil {
		return relayFailed(socket, err)
	}
	go func() {
		os.Exit(relayFailed(socket, d.follow(stream)))
	}()
	return serve(&server{
		info:    Info{Name: info.GetName(), Version: info.GetVersion()},
		plugin:  Plugin{Kind: info.GetKind(), Impl: d, Register: func(grpc.ServiceRegistrar) {}},
		forward: d.forward,
	})
}

func relayFailed(socket string, err error) (exitCode int) {
	Logger().Error(
		"the debugged plugin does not answer: start it again and give the agent its new socket, or start the agent without one",
		"socket", socket, "error", err)
	return 1
}

// debugged is the plugin in the other process.
type debugged struct {
	conn *grpc.ClientConn
	api  pluginv1.PluginServiceClient

	mu     sync.Mutex
	unwell string // its last health report; empty: healthy
}

// follow records the other process's health reports until the stream ends. A halted process sends none.
func (d *debugged) follow(stream grpc.ServerStreamingClient[pluginv1.AttendResponse]) error {
	for {
		health, err := stream.Recv()
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.unwell = health.GetMessage()
		if d.unwell == "" && !health.GetHealthy() {
			d.unwell = "unhealthy"
		}
		d.mu.Unlock()
	}
}

// Validate implements Validator.
func (d *debugged) Validate(ctx context.Context, config []byte) error {
	_, err := d.api.Validate(ctx, &pluginv1.ValidateRequest{Config: config})
	return err
}

// Configure implements Configurer.
func (d *debugged) Configure(ctx context.Context, config []byte) error {
	_, err := d.api.Configure(ctx, &pluginv1.ConfigureRequest{Config: config})
	return err
}

// Health implements HealthReporter.
func (d *debugged) Health(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unwell != "" {
		return errors.New(d.unwell)
	}
	return nil
}

// forward passes a call of any service to the other process, and returns its answer.
func (d *debugged) forward(_ any, host grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(host)
	if !ok {
		return errors.New("the call has no method")
	}
	md, _ := metadata.FromIncomingContext(host.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(host.Context(), md.Copy()))
	defer cancel()
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	plugin, err := d.conn.NewStream(ctx, both, method, grpc.ForceCodecV2(frames{}))
	if err != nil {
		return err
	}
	go func() { // ends when host's context does, which is when this call returns
		if copyFrames(plugin, host) == nil {
			_ = plugin.CloseSend()
		} else {
			cancel()
		}
	}()
	return copyFrames(host, plugin)
}

// copyFrames copies messages until the stream ends.
func copyFrames(to interface{ SendMsg(any) error }, from interface{ RecvMsg(any) error }) error {
	for {
		var f frame
		if err := from.RecvMsg(&f); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := to.SendMsg(&f); err != nil {
			return err
		}
	}
}

// frame is an encoded message.
type frame []byte

// frames is a codec that copies frames as they are, and encodes other messages as protobuf.
type frames struct{}

// Name returns protobuf's name, because that is the codec that the other side knows.
func (frames) Name() string { return proto.Name }

// Marshal implements encoding.CodecV2.
func (frames) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(*f)}, nil
	}
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (frames) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		*f = data.Materialize()
		return nil
	}
	if err := encoding.GetCodecV2(proto.Name).Unmarshal(data, v); err != nil {
		return fmt.Errorf("read a message: %w", err)
	}
	return nil
}
