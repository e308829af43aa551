package identity_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/internal/inprocess"
	"github.com/pannier/pannier/sdk/service"
)

// open is a plugin for a Consul without ACLs, where no service needs a token.
type open struct{}

func (open) Derive(context.Context, service.Consul, identity.DeriveRequest) (identity.Token, string, error) {
	return identity.Token{}, "", nil // no token is needed
}

func (open) Read(context.Context, service.Consul, string) (identity.Token, error) {
	return identity.Token{}, status.Error(codes.NotFound, "there are no tokens")
}

func (open) Revoke(context.Context, service.Consul, identity.Token, string) error { return nil }

func (open) List(context.Context, service.Consul, string) ([]identity.Token, error) { return nil, nil }

// A plugin's main is sdk.Main(info, identity.Plugin(open{})). Here it is served in the same process, and called as a
// host calls it.
func Example() {
	info := sdk.Info{Name: "open", Version: "1.0.0"}
	conn, stop, err := inprocess.Serve(info, identity.Plugin(open{}))
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	host := identity.NewClient(conn)

	_, secret, err := host.Derive(context.Background(), service.Consul{}, identity.DeriveRequest{
		ID: "5f0e2d7c-8a44-4c3c-9a7c-1d7a9b1f4f10", Subject: identity.Subject{Service: "web"},
	})
	fmt.Printf("%q %v\n", secret, err)
	_, err = host.Read(context.Background(), service.Consul{}, "some secret")
	fmt.Println(err)
	// Output:
	// "" <nil>
	// rpc error: code = NotFound desc = there are no tokens
}
