package conformance

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// hostSide serves what plugins ask of their host: the state that all processes of a run share, in memory. Calls of the
// API wait, as while a host is restarted.
type hostSide struct {
	pluginv1.UnimplementedStateServiceServer
	server *http.Server
	conns  chan net.Conn
	closed context.Context
	end    context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex
	values map[string][]byte
}

func newHostSide() *hostSide {
	h := &hostSide{conns: make(chan net.Conn), values: map[string][]byte{}}
	h.closed, h.end = context.WithCancel(context.Background())
	services, protocols := grpc.NewServer(), &http.Protocols{}
	pluginv1.RegisterStateServiceServer(services, h)
	protocols.SetUnencryptedHTTP2(true)
	h.server = &http.Server{
		Protocols: protocols, ReadHeaderTimeout: callTime,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasPrefix(req.URL.Path, "/pannier.plugin.v1.") {
				services.ServeHTTP(w, req)
				return
			}
			<-req.Context().Done()
		}),
	}
	h.wait.Go(func() { _ = h.server.Serve(h) }) // close ends it
	return h
}

// attach serves a process until its connection is closed.
func (h *hostSide) attach(conn *grpc.ClientConn) {
	h.wait.Go(func() {
		wire.Offer(h.closed, conn, func(far net.Conn) {
			select {
			case h.conns <- far:
			case <-h.closed.Done():
				_ = far.Close()
			}
		})
	})
}

func (h *hostSide) close() {
	h.end()
	_ = h.server.Close()
	h.wait.Wait()
}

// Accept implements net.Listener.
func (h *hostSide) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed.Done():
		return nil, errors.New("the run is over")
	}
}

// Close implements net.Listener.
func (h *hostSide) Close() error { return nil }

// Addr implements net.Listener.
func (h *hostSide) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "host"} }

func (h *hostSide) Get(_ context.Context, req *pluginv1.GetRequest) (*pluginv1.GetResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	value, ok := h.values[req.GetKey()]
	if !ok {
		return nil, status.Error(codes.NotFound, "no such key")
	}
	return &pluginv1.GetResponse{Value: value}, nil
}

func (h *hostSide) Put(_ context.Context, req *pluginv1.PutRequest) (*pluginv1.PutResponse, error) {
	_, err := h.update(req.GetKey(), req.GetValue(), func([]byte, bool) bool { return true })
	return &pluginv1.PutResponse{}, err
}

func (h *hostSide) CompareAndSwap(_ context.Context, req *pluginv1.CompareAndSwapRequest,
) (*pluginv1.CompareAndSwapResponse, error) {
	swapped, err := h.update(req.GetKey(), req.GetValue(), func(now []byte, has bool) bool {
		return has == (req.Expected != nil) && bytes.Equal(now, req.Expected)
	})
	return &pluginv1.CompareAndSwapResponse{Swapped: swapped}, err
}

// update stores a value if the condition holds for the present one.
func (h *hostSide) update(key string, value []byte, condition func(now []byte, has bool) bool) (done bool, err error) {
	if err := wire.CheckEntry(key, value); err != nil {
		return false, status.Error(codes.InvalidArgument, err.Error())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now, has := h.values[key]
	if !condition(now, has) {
		return false, nil
	}
	next := maps.Clone(h.values)
	next[key] = value
	size := 0
	for k, v := range next {
		size += len(k) + len(v)
	}
	if err := wire.CheckState(len(next), size, wire.DefaultState); err != nil {
		return false, status.Errorf(codes.ResourceExhausted, "the plugin's state is full: %v", err)
	}
	h.values = next
	return true, nil
}

func (h *hostSide) Delete(_ context.Context, req *pluginv1.DeleteRequest) (*pluginv1.DeleteResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.values, req.GetKey())
	return &pluginv1.DeleteResponse{}, nil
}

func (h *hostSide) List(_ context.Context, req *pluginv1.ListRequest) (*pluginv1.ListResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := slices.Sorted(maps.Keys(h.values))
	return &pluginv1.ListResponse{
		Keys: slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, req.GetPrefix()) }),
	}, nil
}
