package conformance

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// heard is all that the plugin has let others know: the errors of its calls, its
// health, and what can be read of its processes.
type heard struct {
	mu    sync.Mutex
	words []words
}

type words struct{ where, text string }

func (h *heard) note(where, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.words = append(h.words, words{where, text})
}

func (h *heard) all() []words {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]words(nil), h.words...)
}

// isProcess tells what was read of a process from what a call has answered.
func (w words) isProcess() bool { return len(w.where) > 0 && w.where[0] != '/' }

func (h *heard) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err != nil {
		h.note(method, err.Error())
	}
	return err
}

func (h *heard) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		h.note(method, err.Error())
		return nil, err
	}
	return &heardStream{ClientStream: s, heard: h, method: method}, nil
}

type heardStream struct {
	grpc.ClientStream
	heard  *heard
	method string
}

func (s *heardStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		s.heard.note(s.method, err.Error())
	}
	if health, ok := m.(*pluginv1.AttendResponse); ok && err == nil {
		s.heard.note(s.method, health.GetMessage())
	}
	return err
}
