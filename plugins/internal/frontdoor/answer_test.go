package frontdoor

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// A front door takes over although its policy does not exist yet, and not while the agent does not answer.
func TestUnanswered(t *testing.T) {
	var refusal error
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := connect.NewErrorWriter().Write(w, r, refusal); err != nil {
			t.Error(err)
		}
	}))
	ask := func() error {
		_, err := hostv1connect.NewACLServiceClient(agent.Client(), agent.URL).GetACLSelf(t.Context(),
			&hostv1.GetACLSelfRequest{})
		return Unanswered(err)
	}
	for code, answered := range map[connect.Code]bool{
		connect.CodeNotFound: true, connect.CodeFailedPrecondition: true, connect.CodePermissionDenied: true,
		connect.CodeUnavailable: false,
	} {
		refusal = connect.NewError(code, errors.New("find the token of the plugin"))
		if err := ask(); (err == nil) != answered {
			t.Errorf("%s: %v", code, err)
		}
	}
	agent.Close()
	if err := ask(); err == nil {
		t.Error("an agent that is gone has answered")
	}
}
