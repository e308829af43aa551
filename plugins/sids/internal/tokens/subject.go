package tokens

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/identity"
)

var (
	uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	// serviceName is what Consul takes for a service identity.
	serviceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]{0,254}[a-z0-9])?$`)
	minted      = regexp.MustCompile(`^_pannier_si \[([^][]+)\] \[([^][]+)\] \[([^][/]+)/([^][]+)\] \[([^][]+)\]$`)
)

// checkRequest refuses what Consul would refuse with a code that is worth another
// try, and what a description could not say.
func checkRequest(req identity.DeriveRequest) error {
	if !uuid.MatchString(req.ID) {
		return status.Errorf(codes.InvalidArgument, "derive a token: the id %q is no UUID in lower case", req.ID)
	}
	if !serviceName.MatchString(req.Subject.Service) {
		return status.Errorf(codes.InvalidArgument,
			"derive a token for the service %q: Consul takes service identities of lower case letters, digits, - and _, with a letter or digit at both ends", req.Subject.Service)
	}
	if text := describe(req.Subject); subjectOf(text) != req.Subject {
		return status.Errorf(codes.InvalidArgument, "derive a token for %q: a name is empty, or has a bracket or (a namespace) a slash in it", text)
	}
	return nil
}

// describe is the description of a token that is minted.
func describe(s identity.Subject) string {
	return fmt.Sprintf("_pannier_si [%s] [%s] [%s/%s] [%s]", s.Cluster, s.Node, s.Namespace, s.Workload, s.Service)
}

// loginPrefix begins Consul's description of a token that a login has given. The
// login's metadata follow as JSON.
const loginPrefix = "token created via login: "

// The metadata of a login.
const (
	metaID        = "pannier_id"
	metaCluster   = "pannier_cluster"
	metaNode      = "pannier_node"
	metaNamespace = "pannier_namespace"
	metaWorkload  = "pannier_workload"
	metaService   = "pannier_service"
)

func metadata(req identity.DeriveRequest) map[string]string {
	s := req.Subject
	return map[string]string{
		metaID: req.ID, metaCluster: s.Cluster, metaNode: s.Node,
		metaNamespace: s.Namespace, metaWorkload: s.Workload, metaService: s.Service,
	}
}

// subjectOf reads a token's description, of either kind. The subject of a token that
// is none of Pannier's is empty.
func subjectOf(description string) identity.Subject {
	if m := minted.FindStringSubmatch(description); m != nil {
		return identity.Subject{Cluster: m[1], Node: m[2], Namespace: m[3], Workload: m[4], Service: m[5]}
	}
	text, login := strings.CutPrefix(description, loginPrefix)
	var meta map[string]string
	if !login || json.Unmarshal([]byte(text), &meta) != nil {
		return identity.Subject{}
	}
	return identity.Subject{
		Cluster: meta[metaCluster], Node: meta[metaNode], Namespace: meta[metaNamespace],
		Workload: meta[metaWorkload], Service: meta[metaService],
	}
}
