package drivers

import (
	"path/filepath"
	"strings"
)

// Translate gives the path under which the driver sees hostPath. For a driver
// that is not in a container that is hostPath itself. One in a container sees
//
//	<data_dir>/csi/<id>/staging/...       in StagePublishBaseDir
//	<data_dir>/csi/<id>/per-workload/...  in StagePublishBaseDir
//	<data_dir>/csi/<id>/...               in MountDir
//
// A path outside the driver's folder is the same inside: only what is mounted
// into the container under its own name can be meant.
func (d Driver) Translate(hostPath string) string {
	if d.MountDir == "" {
		return hostPath
	}
	rel, inside := below(d.dir, filepath.Clean(hostPath))
	if !inside {
		return hostPath
	}
	if first, _, _ := strings.Cut(rel, "/"); first == "staging" || first == "per-workload" {
		return filepath.Join(d.StagePublishBaseDir, rel)
	}
	return filepath.Join(d.MountDir, rel)
}

// below cuts dir off a clean path; whole elements only.
func below(dir, path string) (rel string, ok bool) {
	if path == dir {
		return "", true
	}
	return strings.CutPrefix(path, dir+"/")
}
