package driver

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The bounds of what a driver answers, in bytes (CSI spec, "Size Limits").
const (
	// maxText bounds a driver's words in an error or a report. The spec has no bound for them.
	maxText = 4 << 10
	// maxMap bounds the keys and values of a map together, such as volume_context and publish_context.
	maxMap = 4 << 10
	// maxID bounds the ids of volumes, snapshots and nodes. The spec allows 128 bytes, and 256 for node_id; ids of
	// Azure's drivers are paths of resources with about 300, those of csi-driver-nfs contain the path of a share.
	maxID = 1 << 10
)

// Bounded returns a driver's text with at most 4 KiB.
func Bounded(text string) string {
	if len(text) <= maxText {
		return text
	}
	cut := text[:maxText]
	for len(cut) > 0 && !utf8.RuneStart(text[len(cut)]) {
		cut = cut[:len(cut)-1]
	}
	return fmt.Sprintf("%s... (%d bytes more)", strings.TrimSpace(cut), len(text)-len(cut))
}

// CheckID returns an error for an id of an answer that is longer than drivers' ids are.
func CheckID(field, id string) error {
	if len(id) > maxID {
		return outOfBounds(field, len(id), maxID)
	}
	return nil
}

// CheckMap returns an error for a map of an answer that is larger than the spec allows.
func CheckMap(field string, m map[string]string) error {
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
	}
	if size > maxMap {
		return outOfBounds(field, size, maxMap)
	}
	return nil
}

func outOfBounds(field string, size, limit int) error {
	return status.Errorf(codes.Internal, "the driver answered with a %s of %d bytes, at most %d are allowed "+
		"(CSI spec, \"Size Limits\")", field, size, limit)
}
