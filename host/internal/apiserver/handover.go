package apiserver

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/system/handover"
)

type connKey struct{}

// withConn adds the connection that can be handed over, if it is one, to the context of its requests.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, handover.Of(c))
}

// handOver lets a request be answered here, or leaves it to the next program. A call that changes something is answered
// by the program that has begun it. A query that waits is given up, and its client, or the server that has forwarded
// it, asks again. A stream that changes nothing ends with the server.
func (s *Server) handOver(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(*handover.Conn)
		if conn != nil && conn.HTTP2() {
			conn = nil
		}
		method := methodOf(r.URL.Path)
		changes, stream := needOf(r.URL.Path).changes, method != nil && streams(method)
		if conn != nil && stream && !changes {
			conn.Uncount()
		}
		if r.ProtoMajor == 2 && s.cfg.Sockets.Held() {
			w.Header().Set("Connection", "close") // net/http sends a GOAWAY
		}
		if method == nil || changes || stream {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		ends, why, code := s.cfg.Sockets.Leaving(), handover.ErrLeaving, http.StatusRequestTimeout
		if conn == nil {
			ends, why, code = s.closing, call.ErrStopping, http.StatusMisdirectedRequest
		}
		defer context.AfterFunc(ends, func() { cancel(why) })() //nolint:contextcheck // ends is no request's
		u := &undecided{ResponseWriter: w, leave: func() bool {
			return errors.Is(context.Cause(ctx), why) && (conn != nil || r.Header.Get(call.ForwardedHeader) != "")
		}}
		if next.ServeHTTP(u, r.WithContext(ctx)); u.left {
			clear(w.Header())
			w.Header().Set("Connection", "close")
			w.WriteHeader(code)
		}
	})
}

// undecided is an answer that is not sent if its request is left to another server or program, which is decided before
// the first byte.
type undecided struct {
	http.ResponseWriter
	leave         func() bool
	decided, left bool
}

func (u *undecided) leaves() bool {
	if !u.decided {
		u.decided, u.left = true, u.leave()
	}
	return u.left
}

func (u *undecided) WriteHeader(code int) {
	if !u.leaves() {
		u.ResponseWriter.WriteHeader(code)
	}
}

func (u *undecided) Write(p []byte) (int, error) {
	if u.leaves() {
		return len(p), nil
	}
	return u.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (u *undecided) Unwrap() http.ResponseWriter { return u.ResponseWriter }
