package bootstrap_test

import (
	"context"
	"fmt"
	"log"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/internal/inprocess"
	"github.com/pannier/pannier/sdk/service"
)

// adminOnly is a plugin whose proxies have an admin port and nothing else.
type adminOnly struct{}

func (adminOnly) Generate(_ context.Context, _ service.Consul, req bootstrap.Request) (bootstrap.Result, error) {
	const format = `{"node":{"id":%q},"admin":{"address":{"socket_address":{"address":%q,"port_value":%d}}}}`
	text := fmt.Appendf(nil, format, req.ProxyID, req.Admin.Address, req.Admin.Port)
	return bootstrap.Result{Bootstrap: text}, nil
}

// A plugin's main is sdk.Main(info, bootstrap.Plugin(adminOnly{})). Here it is served in the same process, and called
// as a host calls it.
func Example() {
	info := sdk.Info{Name: "admin-only", Version: "1.0.0"}
	conn, stop, err := inprocess.Serve(info, bootstrap.Plugin(adminOnly{}))
	if err != nil {
		log.Fatal(err)
	}
	defer stop()

	made, err := bootstrap.NewClient(conn).Generate(context.Background(), service.Consul{}, bootstrap.Request{
		ProxyID: "web-sidecar-proxy", Admin: bootstrap.Bind{Address: "127.0.0.1", Port: 19000},
	})
	fmt.Println(string(made.Bootstrap), err)
	// Output:
	// {"node":{"id":"web-sidecar-proxy"},"admin":{"address":{"socket_address":{"address":"127.0.0.1","port_value":19000}}}} <nil>
}
