package identity_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/plugintest"
	identityv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/identity/v1"
	"github.com/pannier/pannier/sdk/service"
)

// derivers answers by the workload of a request.
type derivers struct{ open }

func (derivers) Derive(_ context.Context, c service.Consul, req identity.DeriveRequest) (identity.Token, string,
	error,
) {
	switch req.Subject.Workload {
	case "refused":
		return identity.Token{}, "", status.Error(codes.PermissionDenied, "not this one")
	case "plain":
		return identity.Token{}, "", errors.New("without a code")
	case "panics":
		panic("in one of a batch")
	case "empty":
		return identity.Token{}, "", nil
	}
	return identity.Token{Accessor: req.ID, Subject: req.Subject}, c.Name + " " + req.ID + " " + req.JWT, nil
}

func client(t *testing.T, register func(grpc.ServiceRegistrar)) identity.Client {
	t.Helper()
	p := identity.Plugin(derivers{})
	if register != nil {
		p.Register = register
	}
	return identity.NewClient(plugintest.Serve(t, p).Conn)
}

func requests(workloads ...string) (reqs []identity.DeriveRequest) {
	for n, w := range workloads {
		reqs = append(reqs, identity.DeriveRequest{
			ID: fmt.Sprintf("id-%d", n), Subject: identity.Subject{Workload: w}, JWT: fmt.Sprintf("jwt-%d", n),
		})
	}
	return reqs
}

// TestBatch checks that each request has the result that Derive gives.
func TestBatch(t *testing.T) {
	c := client(t, nil)
	reqs := requests("well", "refused", "panics", "plain", "empty", "well")
	results, err := c.DeriveBatch(t.Context(), service.Consul{Name: "east"}, reqs)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []codes.Code{
		codes.OK, codes.PermissionDenied, codes.Internal, codes.Internal, codes.OK, codes.OK,
	} {
		token, secret, alone := c.Derive(t.Context(), service.Consul{Name: "east"}, reqs[n])
		got := results[n]
		if status.Code(got.Err) != want || status.Code(alone) != want || got.Token != token || got.Secret != secret {
			t.Errorf("%s: %+v, alone %+v %q %v", reqs[n].Subject.Workload, got, token, secret, alone)
		}
		if want == codes.OK && n != 4 && secret != fmt.Sprintf("east id-%d jwt-%d", n, n) {
			t.Errorf("the secret is %q", secret)
		}
	}
	if text := results[2].Err.Error(); !strings.Contains(text, "panicked") || strings.Contains(text, "jwt-") {
		t.Errorf("a panic: %s", text)
	}
	for _, n := range []int{0, identity.MaxBatch + 1} {
		if _, err := c.DeriveBatch(t.Context(), service.Consul{}, make([]identity.DeriveRequest, n)); status.Code(err) !=
			codes.InvalidArgument {
			t.Errorf("%d requests: %v", n, err)
		}
	}
}

// TestBatchOfAnother checks that an answer is refused as a whole if its results are not those of the requests.
func TestBatchOfAnother(t *testing.T) {
	well := func(n int) *identityv1.DeriveResult {
		return &identityv1.DeriveResult{Id: fmt.Sprintf("id-%d", n), Secret: "s3cr3t"}
	}
	for name, tc := range map[string]struct {
		results []*identityv1.DeriveResult
		says    string
	}{
		"too few":   {[]*identityv1.DeriveResult{well(0), well(1)}, "gave 2 results for 3 requests"},
		"too many":  {[]*identityv1.DeriveResult{well(0), well(1), well(2), well(2)}, "gave 4 results for 3 requests"},
		"none":      {nil, "gave 0 results for 3 requests"},
		"order":     {[]*identityv1.DeriveResult{well(0), well(2), well(1)}, `"id-2" where the result of "id-1" belongs`},
		"repeated":  {[]*identityv1.DeriveResult{well(0), well(1), well(1)}, `"id-1" where the result of "id-2" belongs`},
		"no id":     {[]*identityv1.DeriveResult{well(0), well(1), {Secret: "s3cr3t"}}, `"" where the result of "id-2"`},
		"no result": {[]*identityv1.DeriveResult{well(0), nil, well(2)}, `"" where the result of "id-1" belongs`},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, func(r grpc.ServiceRegistrar) {
				identityv1.RegisterIdentityServiceServer(r, &answers{results: tc.results})
			})
			got, err := c.DeriveBatch(t.Context(), service.Consul{}, requests("a", "b", "c"))
			if got != nil || status.Code(err) != codes.Internal || !strings.Contains(err.Error(), tc.says) ||
				strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	c := client(t, func(r grpc.ServiceRegistrar) {
		codeless := well(1)
		codeless.Message = "failed"
		identityv1.RegisterIdentityServiceServer(r, &answers{results: []*identityv1.DeriveResult{well(0), codeless}})
	})
	got, err := c.DeriveBatch(t.Context(), service.Consul{}, requests("a", "b"))
	if err != nil || got[0].Err != nil || status.Code(got[1].Err) != codes.Internal || got[1].Secret != "" {
		t.Errorf("an error without a code: %v, %v", got, err)
	}
}

// TestBatchIsOptional checks what a client sees of a plugin without batches.
func TestBatchIsOptional(t *testing.T) {
	c := client(t, func(r grpc.ServiceRegistrar) {
		old := identityv1.IdentityService_ServiceDesc
		old.Methods = slices.DeleteFunc(slices.Clone(old.Methods), func(m grpc.MethodDesc) bool {
			return m.MethodName == "DeriveBatch"
		})
		r.RegisterService(&old, &answers{})
	})
	if _, err := c.DeriveBatch(t.Context(), service.Consul{}, requests("a", "b")); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

// answers gives the same results to all batches.
type answers struct {
	identityv1.UnimplementedIdentityServiceServer
	results []*identityv1.DeriveResult
}

func (a *answers) DeriveBatch(context.Context, *identityv1.DeriveBatchRequest) (*identityv1.DeriveBatchResponse,
	error,
) {
	return &identityv1.DeriveBatchResponse{Results: a.results}, nil
}
