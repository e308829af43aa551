package driver

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"github.com/pannier/pannier/internal/kmutex"
)

// maxMessage bounds an answer and a request, in bytes. gRPC's default of 4 MiB
// is too small for a ListVolumes without pages on a large back end.
const maxMessage = 16 << 20

// reconnect is how soon a lost driver is dialled again: its restart is a matter
// of a second, and the socket is on this machine.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// Conn is the connection to one driver. Its clients may be used inside Do only.
type Conn struct {
	Identity   csi.IdentityClient
	Controller csi.ControllerClient
	Node       csi.NodeClient

	path       string
	log        hclog.Logger
	timing     Timing
	cc         *grpc.ClientConn
	locks      kmutex.Locks[string]
	lastDial   atomic.Pointer[error] // of the last dial that failed
	epoch      atomic.Uint64         // grows with each connection made or lost
	controller cache[*Controller]
	node       cache[*Node]
}

func open(path string, log hclog.Logger, timing Timing) (*Conn, error) {
	c := &Conn{path: path, log: log, timing: timing}
	// passthrough and a dialler of our own instead of gRPC's unix resolver: the
	// dial's error stays whole for the operator, and the authority is the plain
	// "localhost" that every gRPC server accepts.
	cc, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithContextDialer(c.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(reconnect),
		grpc.WithIdleTimeout(idleAfter),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithUnaryInterceptor(c.intercept),
		grpc.WithStatsHandler(epochs{c}),
		grpc.WithDisableRetry(), // retries are Do's alone
	)
	if err != nil {
		return nil, fmt.Errorf("set up the connection to %s: %w", path, err)
	}
	c.cc = cc
	c.Identity = csi.NewIdentityClient(cc)
	c.Controller = csi.NewControllerClient(cc)
	c.Node = csi.NewNodeClient(cc)
	return c, nil
}

func (c *Conn) dial(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.path)
	if err != nil {
		c.lastDial.Store(&err)
		return nil, err
	}
	return conn, nil
}

// State is the connection's state now, for WaitForChange.
func (c *Conn) State() connectivity.State { return c.cc.GetState() }

// WaitForChange returns true when the connection's state is no longer from, and
// false when ctx ends first.
func (c *Conn) WaitForChange(ctx context.Context, from connectivity.State) bool {
	return c.cc.WaitForStateChange(ctx, from)
}

// epochs counts a Conn's connections, so that what was learned from one driver
// process is not taken for true of the next.
type epochs struct{ conn *Conn }

func (e epochs) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin, *stats.ConnEnd:
		e.conn.epoch.Add(1)
	}
}
func (e epochs) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (e epochs) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (e epochs) HandleRPC(context.Context, stats.RPCStats)                         {}
