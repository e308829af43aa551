package faultydriver

import (
	"context"
	"net"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Config describes the driver. The zero value is a driver called faulty.test with all services and capabilities.
type Config struct {
	Socket       string // default: csi.sock in a temporary directory
	Name         string
	NodeID       string
	MaxVolumes   int64 // per node; 0: no limit
	NoController bool
	NoNode       bool
	Offline      bool // declares VolumeExpansion OFFLINE, besides ONLINE unless Without names that
	// Without removes capabilities, by their names in the CSI spec; a name that the controller and the node
	// service share is removed from both, or from one with the prefix "controller." or "node.".
	Without []string
	// Mounts makes staging and target paths real bind mounts of a directory next to the socket. This needs
	// root. Otherwise both are plain directories.
	Mounts bool
	// Strict makes it stage only volumes that are attached to NodeID, with the publish context of that.
	Strict bool
	// Locks makes the driver answer Aborted to a call for a volume that another call is working on, as the CSI
	// spec asks of drivers ("Concurrency"). Without it, a test uses MostInFlight to check that the caller makes
	// one call at a time.
	Locks bool
	// Forward is the endpoint of a real driver that does all the work: this one adds only the faults, and hides
	// services (NoController, NoNode).
	Forward string
	// Raw capabilities are added by number, for those that newer specs have removed.
	RawController, RawNode []int32
}

// Call is one recorded request.
type Call struct {
	RPC      string // such as NodeStageVolume
	Request  proto.Message
	Began    time.Time
	Deadline time.Time // of the attempt; zero when the caller set none
}

// Driver is the running driver. All methods may be called at any time.
type Driver struct {
	t       testing.TB
	backend *backend
	behind  *grpc.ClientConn // of Config.Forward

	mu       sync.Mutex
	config   Config
	scripts  map[string][]Fault
	always   map[string]Fault
	calls    []Call
	inFlight map[string]int
	most     map[string]int // highest inFlight seen
	server   *grpc.Server   // nil: the driver is dead
	listener net.Listener   // of server
	conns    map[net.Conn]struct{}
	served   sync.WaitGroup
	arrived  chan struct{} // closed and replaced when a call arrives
	mounted  []string      // in order, including those that are unmounted again
	watch    watch
}

// Start serves a driver until the test ends.
func Start(t testing.TB, config Config) *Driver {
	t.Helper()
	if config.Socket == "" {
		// t.TempDir includes the test's name, which could make the path too long for a socket's address.
		dir, err := os.MkdirTemp("", "faulty")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) }) // runs after the mounts are removed, see below
		config.Socket = filepath.Join(dir, "csi.sock")
	}
	d := &Driver{
		t: t, config: config, backend: newBackend(),
		scripts: map[string][]Fault{}, always: map[string]Fault{},
		inFlight: map[string]int{}, most: map[string]int{},
		arrived: make(chan struct{}),
	}
	if config.Forward != "" {
		d.dial()
	}
	t.Cleanup(d.unmountAll)
	t.Cleanup(d.Stop)
	d.Restart()
	return d
}

// Endpoint is the driver's socket as unix:///path.
func (d *Driver) Endpoint() string { return "unix://" + d.config.Socket }

// Script appends faults for the next calls of an RPC, one for each call; later calls succeed again.
func (d *Driver) Script(rpc string, faults ...Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.scripts[rpc] = append(d.scripts[rpc], faults...)
}

// ScriptVolume is Script for the calls about one volume, by its id. It has priority over Script.
func (d *Driver) ScriptVolume(volume, rpc string, faults ...Fault) {
	d.Script(scriptOf(rpc, volume), faults...)
}

// scriptOf is the key of a volume's own script.
func scriptOf(rpc, volume string) string { return rpc + " " + volume }

// Always applies f to every call of an RPC for which no script is left. A zero Fault ends that.
func (d *Driver) Always(rpc string, f Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.run == nil {
		delete(d.always, rpc)
		return
	}
	d.always[rpc] = f
}

// Calls returns the calls of an RPC so far, oldest first; of all RPCs for "".
func (d *Driver) Calls(rpc string) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Call
	for _, c := range d.calls {
		if rpc == "" || c.RPC == rpc {
			out = append(out, c)
		}
	}
	return out
}

// patience bounds the wait for calls.
const patience = time.Minute

// AwaitCalls waits until n calls of an RPC have arrived, and fails the test if that takes too long.
func (d *Driver) AwaitCalls(rpc string, n int) {
	d.t.Helper()
	deadline := time.After(patience)
	for {
		d.mu.Lock()
		next := d.arrived
		d.mu.Unlock()
		if len(d.Calls(rpc)) >= n {
			return
		}
		select {
		case <-next:
		case <-deadline:
			d.t.Fatalf("%d calls of %s arrived within %s, want %d", len(d.Calls(rpc)), rpc, patience, n)
		}
	}
}

// MostInFlight returns the highest number of concurrent calls for a volume, by its id, or by its name in
// CreateVolume.
func (d *Driver) MostInFlight(volume string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.most[volume]
}

// Reconfigure changes the configuration for the next Restart.
func (d *Driver) Reconfigure(change func(*Config)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.config)
}

// Stop ends the driver at once and removes its socket.
func (d *Driver) Stop() {
	d.crash()
	d.served.Wait()
	_ = os.Remove(d.config.Socket)
}

// Restart serves again at the same path, with the same volumes. A running driver is stopped first.
func (d *Driver) Restart() {
	d.t.Helper()
	d.Stop()
	listener, err := net.Listen("unix", d.config.Socket)
	if err != nil {
		d.t.Fatalf("serve the faulty driver: %v", err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // a crash leaves the file
	var server *grpc.Server
	server = grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
		handler grpc.UnaryHandler,
	) (any, error) {
		if !d.serves(server) {
			return nil, status.Error(codes.Unavailable, "unreachable text: the driver is dead")
		}
		return d.intercept(ctx, req, info, handler)
	}))
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &services{d: d, config: d.config, backend: d.backend}
	csi.RegisterIdentityServer(server, s)
	if !d.config.NoController {
		csi.RegisterControllerServer(server, s)
		csi.RegisterGroupControllerServer(server, s)
	}
	if !d.config.NoNode {
		csi.RegisterNodeServer(server, s)
	}
	d.server, d.listener, d.conns = server, listener, map[net.Conn]struct{}{}
	d.served.Go(func() { _ = server.Serve(&tracked{listener, d}) })
}

// Kill ends the driver like kill -9, and leaves its socket's file behind. It may be called within a fault, and may
// be repeated.
func (d *Driver) Kill() { d.crash() }

// DropConnections closes every connection, like a driver that dies.
func (d *Driver) DropConnections() { d.dropConnections() }

// Running reports whether the driver serves.
func (d *Driver) Running() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.server != nil
}

// serves reports whether a server is that of the running driver: a dead one must not record calls and apply faults
// until its connections are closed.
func (d *Driver) serves(server *grpc.Server) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.server == server
}

// crash ends the server without waiting for calls, because it may run in one. As with a process that ends, nobody
// can connect once the connections are closed: a caller would take what happens to that connection for another death.
func (d *Driver) crash() {
	d.mu.Lock()
	server, listener := d.server, d.listener
	d.server = nil
	d.mu.Unlock()
	if server == nil {
		return
	}
	d.served.Add(1) // before Serve ends: Stop may be waiting
	_ = listener.Close()
	d.dropConnections()
	go func() {
		defer d.served.Done()
		server.Stop()
	}()
}

func (d *Driver) dropConnections() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		_ = c.Close()
		delete(d.conns, c)
	}
}

// tracked is a listener that records its connections, so that they can be closed.
type tracked struct {
	net.Listener
	d *Driver
}

func (l *tracked) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.d.mu.Lock()
		l.d.conns[c] = struct{}{}
		l.d.mu.Unlock()
	}
	return c, err
}

// intercept records the call and applies its fault.
func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
	error,
) {
	rpc := path.Base(info.FullMethod)
	call := Call{RPC: rpc, Request: req.(proto.Message), Began: time.Now()}
	call.Deadline, _ = ctx.Deadline()
	fault, end := d.begin(call)
	defer end()
	if fault.change != nil {
		changed := proto.Clone(call.Request)
		fault.change(changed)
		req = changed
	}
	if d.pending(call.Request) {
		return nil, status.Error(codes.Aborted, "a call for this volume is under way")
	}
	resp, err := recovered(func() (any, error) {
		return fault.run(ctx, d, func() (any, error) {
			d.watch.before(req)
			if d.behind != nil {
				handler = func(ctx context.Context, req any) (any, error) { return d.forward(ctx, info.FullMethod, req) }
			}
			resp, err := handler(ctx, req)
			if err == nil {
				d.watch.after(req)
			}
			return resp, err
		})
	})
	if err == nil || status.Code(err) == codes.NotFound {
		d.watch.after(req) // the driver reports success, true or not
	}
	return resp, err
}

func (d *Driver) begin(call Call) (fault Fault, end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call)
	close(d.arrived)
	d.arrived = make(chan struct{})
	volume := volumeOf(call.Request)
	d.inFlight[volume]++
	d.most[volume] = max(d.most[volume], d.inFlight[volume])
	end = func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.inFlight[volume]--
	}
	for _, key := range []string{scriptOf(call.RPC, volume), call.RPC} {
		if script := d.scripts[key]; len(script) > 0 {
			d.scripts[key] = script[1:]
			return script[0], end
		}
	}
	if f, ok := d.always[call.RPC]; ok {
		return f, end
	}
	return OK(), end
}

// pending reports whether another call for the same volume is in progress.
func (d *Driver) pending(req proto.Message) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	volume := volumeOf(req)
	return d.config.Locks && volume != "" && d.inFlight[volume] > 1
}

// volumeOf returns the volume on which the spec allows one call at a time.
func volumeOf(req proto.Message) string {
	switch r := req.(type) {
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	case *csi.CreateVolumeRequest:
		return r.GetName()
	case *csi.CreateSnapshotRequest:
		return r.GetSourceVolumeId()
	}
	return ""
}
