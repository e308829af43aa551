package wire

import (
	"fmt"
	"unicode/utf8"
)

// Bounds of a plugin's state, in bytes.
const (
	// DefaultState bounds all keys and values: state_limit in a plugin's block changes it.
	DefaultState = 1 << 20
	// MaxStateKey bounds a key.
	MaxStateKey = 256
	// MaxStateValue bounds a value.
	MaxStateValue = 32 << 10
)

// CheckEntry returns why an entry cannot be in a plugin's state.
func CheckEntry(key string, value []byte) error {
	if key == "" || len(key) > MaxStateKey || !utf8.ValidString(key) || len(value) > MaxStateValue {
		return fmt.Errorf("a key has 1 to %d bytes of UTF-8, a value at most %d bytes", MaxStateKey, MaxStateValue)
	}
	return nil
}

// CheckState returns why a plugin's state cannot have so many keys, or so many bytes of keys and values. limit is in
// bytes.
func CheckState(keys, size, limit int) error {
	if most := limit * 1000 / DefaultState; keys > most || size > limit {
		return fmt.Errorf("it would have %d keys and %d bytes, and may have %d keys and %d bytes: the plugin must delete "+
			"some, or raise state_limit in its plugin block", keys, size, most, limit)
	}
	return nil
}
