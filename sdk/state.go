package sdk

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// State is the plugin's own small key-value state. The host keeps it; the plugin's next processes read it, whatever
// their version, and `pannier plugin remove` deletes it. A write that has returned survives the end of plugin and
// host, however they end. A loss of power may undo the last seconds of writes, so the state is for what can be found
// out again or done again: what must last is in the ledger, through the host's API.
//
// A plugin has at most 1,000 keys and 1 MiB, keys and values counted, unless state_limit in its plugin block says
// another size. A key has 1 to 256 bytes of UTF-8, a value at most 32 KiB. During a swap
// the old and the new process share the state: use CompareAndSwap where both may write.
//
// While no host runs, calls wait until their context ends. Errors are gRPC status
// errors.
type State struct{ rpc pluginv1.StateServiceClient }

// HostState returns this plugin's state.
var HostState = sync.OnceValue(func() *State { return &State{rpc: pluginv1.NewStateServiceClient(hostConn())} })

// hostConn returns the connection for calls of the host's services.
var hostConn = sync.OnceValue(func() *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///host",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the connection below has TLS
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return DialHost(ctx) }),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second},
			MinConnectTimeout: time.Minute, // a restart of the host is no reason to pause
		}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		panic(err) // the target is a constant
	}
	return conn
})

// Get returns the value of a key; found is false if there is none.
func (s *State) Get(ctx context.Context, key string) (value []byte, found bool, err error) {
	res, err := s.rpc.Get(ctx, &pluginv1.GetRequest{Key: key})
	if status.Code(err) == codes.NotFound {
		return nil, false, nil
	}
	return res.GetValue(), err == nil, err
}

// Put stores a value. Errors: InvalidArgument for a key or value out of bounds; ResourceExhausted, at once, if the
// state would be too large, or the host's disk is full: delete keys, a repetition fails again.
func (s *State) Put(ctx context.Context, key string, value []byte) error {
	_, err := s.rpc.Put(ctx, &pluginv1.PutRequest{Key: key, Value: value})
	return err
}

// Delete deletes a key, if it exists.
func (s *State) Delete(ctx context.Context, key string) error {
	_, err := s.rpc.Delete(ctx, &pluginv1.DeleteRequest{Key: key})
	return err
}

// List returns the keys that begin with a prefix, in order.
func (s *State) List(ctx context.Context, prefix string) ([]string, error) {
	res, err := s.rpc.List(ctx, &pluginv1.ListRequest{Prefix: prefix})
	return res.GetKeys(), err
}

// CompareAndSwap stores a value if the present one equals expected; nil: if the key does not exist. swapped is false if
// the present value is another one. Errors: Put's.
func (s *State) CompareAndSwap(ctx context.Context, key string, expected, value []byte) (swapped bool, err error) {
	res, err := s.rpc.CompareAndSwap(ctx,
		&pluginv1.CompareAndSwapRequest{Key: key, Expected: expected, Value: value})
	return res.GetSwapped(), err
}
