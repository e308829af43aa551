package driver

import (
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxSocketPath is what fits into sockaddr_un.sun_path with its final zero (unix(7)).
const maxSocketPath = 107

// socketPath gives the socket's path out of an endpoint: unix:///path,
// unix:/path or a bare absolute path. Any other is InvalidArgument.
func socketPath(endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		path = strings.TrimPrefix(endpoint, "unix:")
	}
	switch {
	case !filepath.IsAbs(path):
		return "", status.Errorf(codes.InvalidArgument,
			"endpoint %q: want the absolute path of a unix socket, such as unix:///run/csi/csi.sock", endpoint)
	case len(path) > maxSocketPath:
		return "", status.Errorf(codes.InvalidArgument,
			"endpoint %q: the path has %d bytes, a unix socket's can have %d: use a shorter one", endpoint, len(path), maxSocketPath)
	}
	return filepath.Clean(path), nil
}
