package site

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/plugins/web/internal/session"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// user is who makes a request.
type user struct {
	session.Session
	api *api.Client
}

// who returns the user of a request. Without a session it has an empty one.
func (s *Site) who(r *http.Request) user {
	found, err := s.Sessions.Of(r, s.overTLS(r))
	if err != nil {
		return user{api: s.API}
	}
	return user{found, s.API}
}

// as returns a context whose calls are the user's: without a token they are those of somebody without one, and never
// the plugin's own.
func (u user) as(ctx context.Context) context.Context { return api.WithCaller(ctx, u.Secret) }

// ask makes a unary call as a user.
func ask[Q, A any](ctx context.Context, u user, call func(context.Context, *Q) (*A, error), msg *Q) (*A, error) {
	res, err := call(u.as(ctx), msg)
	if err != nil {
		return nil, err
	}
	return res, nil
}

// signedOut says that a call failed since the user has no token, or one that is not known or has ended.
func (u user) signedOut(err error) bool {
	code := connect.CodeOf(err)
	return code == connect.CodeUnauthenticated || code == connect.CodePermissionDenied && u.Secret == ""
}

// aclsOff says whether the agents have ACLs disabled.
func (u user) aclsOff(ctx context.Context) bool {
	_, err := ask(ctx, u, u.api.ACL.GetACLSelf, &hostv1.GetACLSelfRequest{})
	return connect.CodeOf(err) == connect.CodeFailedPrecondition
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
