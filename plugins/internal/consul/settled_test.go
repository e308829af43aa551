package consul

import (
	"net/http"
	"testing"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// A token that Consul does not know may be one that its leader has not read yet: only a consistent read says so.
func TestATokenThatIsNotKnown(t *testing.T) {
	t.Parallel()
	cluster := consul.Start(t, consul.Options{ACL: true})
	proxy := cluster.Proxy(t, 0)
	c := proxy.Service(cluster.Service(service.DefaultConsul, ""))
	p := newPool(t)
	const of = "/v1/catalog/nodes"
	unknown := consul.Status(http.StatusForbidden, "ACL not found")
	for name, test := range map[string]struct {
		token  string
		leader consul.Fault // of the consistent read
		want   codes.Code
		text   string
	}{
		"it stands":       {cluster.Management, nil, codes.Unavailable, "although the token exists"},
		"it does not":     {"5ec4e700-0000-4000-8000-000000000000", nil, codes.PermissionDenied, "ACL not found"},
		"without leader":  {cluster.Management, consul.Status(http.StatusInternalServerError, "No cluster leader"), codes.Unavailable, "No cluster leader"},
		"without answers": {cluster.Management, consul.Cut(), codes.Unavailable, "cannot confirm"},
	} {
		t.Run(name, func(t *testing.T) {
			defer proxy.Clear()
			proxy.Add(consul.Match{Path: of}, unknown)
			if test.leader != nil {
				proxy.Add(consul.Match{Path: "/v1/acl/token/self"}, test.leader)
			}
			client, err := p.Client(c, test.token)
			check.NoError(t, err)
			_, _, err = client.Catalog().Nodes(new(api.QueryOptions).WithContext(t.Context()))
			wantCode(t, Error(err, c, "list the nodes"), test.want, test.text)
		})
	}
}
