package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/peer/transport"
)

const (
	// maxHeaders bounds the headers of a request, in bytes.
	maxHeaders = 64 << 10
	// maxStreams is the number of requests that may run at a time on one connection.
	maxStreams = 100
)

// maxUnknown bounds the body of a request that is refused whatever it is about, in bytes, of which the audit log has
// that; and of one that the leader answers and this agent would not: the leader may know more of the caller's token.
const maxUnknown = 64 << 10

// gate checks the caller of a request, and whether it has the call's permissions anywhere, before it reads a body, and
// bounds what is held of requests: bytes, in all and by caller, and the time in which a body must arrive. The
// interceptor checks what the request asks for. Root on the unix socket is not bounded.
func (s *Server) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &body{ReadCloser: r.Body, control: http.NewResponseController(w)}
		if r.Body != http.NoBody {
			b.deadline(time.Now().Add(transport.BodyTimeout)) // also for what net/http reads of a refused one
		}
		method := methodOf(r.URL.Path)
		if method != nil {
			c, err := s.admit(r.Context(), r.URL.Path, r.Header)
			r = r.WithContext(context.WithValue(r.Context(), admittedKey{}, c))
			switch {
			case err != nil && s.answeredElsewhere(method, r) && !errors.Is(err, errNodeHere) &&
				(c.Cert != nil || c.Plugin != "" || s.access.check(c.Peer) == nil):
				b.ReadCloser = http.MaxBytesReader(w, r.Body, maxUnknown)
			case err != nil:
				s.calls.observe(r.URL.Path, err)
				s.record(c, r.URL.Path, nil, "", false, err)
				_ = refusals.Write(w, r, err) // fails only if the caller is gone
				return
			case c.Root:
				b.deadline(time.Time{})
				next.ServeHTTP(w, r)
				return
			case needOf(r.URL.Path).check(c, nil) != nil:
				b.ReadCloser = http.MaxBytesReader(w, r.Body, maxUnknown)
			}
		}
		held, err := s.limits.Bytes().Hold(s.holder(r))
		defer held.Release()
		if err == nil && method != nil && method.IsStreamingClient() {
			b.stream = true
			err = held.Take(maxRequest)
		}
		if err != nil {
			s.tooMuch(r, err)
			_ = refusals.Write(w, r, connect.NewError(connect.CodeResourceExhausted, err))
			return
		}
		b.held, b.over = held, func(err error) { s.tooMuch(r, err) }
		r = r.WithContext(context.WithValue(r.Context(), heldKey{}, held))
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// holder names who is charged for a request.
func (s *Server) holder(r *http.Request) string {
	if cert, ok := transport.PeerFrom(r.Context()); ok {
		return cert.String()
	}
	if plugin := pluginOf(r.Context()); plugin != "" {
		return "plugin " + plugin
	}
	if p := peerOf(r.Context()); p.Err == nil {
		return fmt.Sprintf("user %d", p.UID)
	}
	return "callers without a certificate"
}

func (s *Server) tooMuch(r *http.Request, err error) {
	s.limits.Refused("a request was refused", err, "path", call.Shortened(r.URL.Path), "from", r.RemoteAddr)
}

type heldKey struct{}

// body is the body of a request that is counted while it is read, and must arrive in time. A stream has that time for
// each of its messages, and its messages are read one by one, so all of it counts as one.
type body struct {
	io.ReadCloser
	held    *transport.Held
	stream  bool
	control *http.ResponseController
	over    func(error)
}

func (b *body) Read(p []byte) (n int, err error) {
	if b.stream {
		b.deadline(time.Now().Add(transport.BodyTimeout))
	}
	n, err = b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.deadline(time.Time{}) // else it would end the connection that net/http goes on to read
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("the request did not arrive within %s: %w", transport.BodyTimeout, err)
	}
	if !b.stream {
		if over := b.held.Take(n); over != nil {
			b.over(over)
			return 0, over
		}
	}
	return n, err
}

// deadline fails only for a connection that is closed.
func (b *body) deadline(t time.Time) { _ = b.control.SetReadDeadline(t) }
