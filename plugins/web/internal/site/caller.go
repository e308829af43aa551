package site

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/plugins/web/internal/session"
	"github.com/pannier/pannier/sdk/api"
)

// user is who makes a request.
type user struct{ session.Session }

// who returns the user of a request. Without a session it has an empty one.
func (s *Site) who(r *http.Request) user {
	found, _ := s.Sessions.Of(r, s.overTLS(r))
	if s.shared(r) {
		return user{}
	}
	return user{found}
}

// as returns a context whose calls are the user's: without a token they are those of somebody without one, and never
// the plugin's own.
func (u user) as(ctx context.Context) context.Context { return api.WithCaller(ctx, u.Secret) }

// signedOut reports whether a call failed because the user has no token, or one that is unknown or has ended.
func (u user) signedOut(err error) bool {
	code := connect.CodeOf(err)
	return code == connect.CodeUnauthenticated || code == connect.CodePermissionDenied && u.Secret == ""
}

// reason is an error's text for people, without connect's code before it.
func reason(err error) string {
	if err == nil {
		return ""
	}
	var failed *connect.Error
	if errors.As(err, &failed) {
		return failed.Message()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "the agent has not answered in time"
	}
	return err.Error()
}

// status is the status of an answer that an error of the API makes.
func status(err error) int {
	switch connect.CodeOf(err) {
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeInvalidArgument:
		return http.StatusBadRequest
	case connect.CodeFailedPrecondition, connect.CodeAborted, connect.CodeAlreadyExists:
		return http.StatusConflict
	default:
		return http.StatusBadGateway
	}
}

// qualified is an id with its namespace in front, unless that is the default one.
func qualified(namespace, id string) string {
	if namespace == "" || namespace == defaultNamespace {
		return id
	}
	return namespace + "/" + id
}

// unqualified is the reverse.
func unqualified(id string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(id, "/"); ok {
		return namespace, name
	}
	return defaultNamespace, id
}

const defaultNamespace = "default"
