package sdk

// As returns impl as a T, or the first value that it wraps which is one. A wrapper has the method Unwrap() any. All
// optional interfaces are looked for so: what wraps an implementation hides none of its abilities.
func As[T any](impl any) (found T, ok bool) {
	for {
		if found, ok = impl.(T); ok {
			return found, true
		}
		wrapper, wraps := impl.(interface{ Unwrap() any })
		if !wraps {
			return found, false
		}
		impl = wrapper.Unwrap()
	}
}
