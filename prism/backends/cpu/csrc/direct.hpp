// Calls as nearly all are, of tensors of torch or arrays of numpy like those of an earlier call, without the interpreter
// between: what the emitted function does for them, in CPython's stable interface. Of anything else the answer is None, nothing has been
// done, and the emitted function says what is wrong or does what is right.
//
// CPython's functions come by address from ctypes, so neither its headers nor its library are needed.
#include <cstdint>
#include <cstring>
struct PyObject;
namespace {
struct Buffer {  // Py_buffer
    void* at;
    PyObject* owner;
    intptr_t bytes, element;
    int readonly, dimensions;
    char* format;
    intptr_t *shape, *strides, *suboffsets;
    void* internal;
};
struct Python {  // in the order of _PYTHON of loader.py
    PyObject* (*attribute)(PyObject*, PyObject*);
    PyObject* (*call_one)(PyObject*, PyObject*);
    PyObject* (*call)(PyObject*, PyObject*, PyObject*);
    PyObject* (*type)(PyObject*);
    int (*compare)(PyObject*, PyObject*, int);
    void* (*number)(PyObject*);
    PyObject* (*tuple)(intptr_t);
    int (*put)(PyObject*, intptr_t, PyObject*);
    PyObject* (*item)(PyObject*, intptr_t);
    intptr_t (*size)(PyObject*);
    void (*keep)(PyObject*);
    void (*drop)(PyObject*);
    void (*clear)();
    int (*buffer)(PyObject*, Buffer*, int);
    void (*release)(Buffer*);
    void* (*leave)();
    void (*enter)(void*);
    PyObject* (*function)(void*, PyObject*, PyObject*);
    PyObject* (*capsule)(void*, const char*, void (*)(PyObject*));
    void* (*held)(PyObject*, const char*);
} python;  // the process's
constexpr int EQUAL = 2;          // Py_EQ
constexpr int CONTIGUOUS = 0;     // PyBUF_SIMPLE
constexpr int FASTCALL = 0x0080;  // METH_FASTCALL
constexpr int MOST = 64;          // tensors and buffers of a call

// What a call has to be like, and what is done then. The objects belong to `spec`, in the order of `_learn` of loader.py.
struct Direct {
    PyObject *spec, *none, *yes, *numpy, *tensor, *parameter, *names[4], *is_neg, *is_contiguous, *data_ptr, *empty_like, *grad_enabled;
    PyObject *dtypes, *shapes, *single, *makers, *nothing;
    int inputs, outputs, buffers, threads;
    void* tensors[MOST];
    const int64_t* lengths;
    void (*run)(void* const*, const int64_t*, int);

    // Whether that attribute of a tensor, or the result of the function on it, is this very object.
    bool is(PyObject* found, PyObject* wanted) const {
        if (found) python.drop(found);
        return found == wanted;
    }
    // Null where it is not contiguous, or empty.
    void* address(PyObject* t) const {
        if (numpy == yes) {
            Buffer b;
            if (python.buffer(t, &b, CONTIGUOUS)) return nullptr;
            void* const at = b.bytes ? b.at : nullptr;
            python.release(&b);
            return at;
        }
        if (!is(python.call_one(is_contiguous, t), yes)) return nullptr;
        PyObject* found = python.call_one(data_ptr, t);
        void* at = found ? python.number(found) : nullptr;
        if (found) python.drop(found);
        return at;
    }
    bool readable(PyObject* t, int n) const {
        PyObject* type = python.type(t);
        if (!is(type, tensor) && type != parameter) return false;
        if (!is(python.attribute(t, names[0]), python.item(dtypes, n))) return false;
        PyObject* shape = python.attribute(t, names[1]);
        const bool fits = shape && python.compare(shape, python.item(shapes, n), EQUAL) == 1;
        if (shape) python.drop(shape);
        if (!fits || numpy == yes) return fits;
        if (!is(python.attribute(t, names[2]), yes)) return false;
        // A negative view is contiguous if it has one element.
        if (python.item(single, n) == yes && is(python.call_one(is_neg, t), yes)) return false;
        return !is(python.attribute(t, names[3]), yes) || !is(python.call(grad_enabled, nothing, nullptr), yes);
    }
    PyObject* made(PyObject* const* given, int n) const {
        PyObject* how = python.item(makers, n);
        PyObject* like = python.item(how, 0);
        if (like != none) return python.call_one(empty_like, given[(intptr_t)python.number(like)]);
        return python.call(python.item(how, 1), python.item(how, 2), python.item(how, 3));
    }
    PyObject* operator()(PyObject* const* given, intptr_t many) const {
        if (many != inputs) return nullptr;
        void* all[MOST];
        std::memcpy(all, tensors, sizeof(void*) * (inputs + outputs + buffers));
        for (int n = 0; n < inputs; ++n)
            if (!readable(given[n], n) || !(all[n] = address(given[n]))) return nullptr;
        PyObject* results[MOST];
        int done = 0;
        for (; done < outputs; ++done) {
            PyObject* y = results[done] = made(given, done);
            if (!y) break;
            // Under a mode of torch's, as one that traces, it may be anything.
            if (!is(python.type(y), tensor) || !(all[inputs + done] = address(y))) {
                python.drop(y);
                break;
            }
        }
        PyObject* found = done < outputs ? nullptr : outputs == 1 ? results[0] : python.tuple(outputs);
        if (!found) {
            while (done--) python.drop(results[done]);
            return nullptr;
        }
        void* const state = python.leave();
        run(all, lengths, threads);
        python.enter(state);
        for (int n = 0; outputs > 1 && n < outputs; ++n) python.put(found, n, results[n]);
        return found;
    }
};
constexpr const char* CAPSULE = "prism.direct";
PyObject* called(PyObject* self, PyObject* const* given, intptr_t many) {
    const Direct& direct = *(const Direct*)python.held(self, CAPSULE);
    PyObject* found = direct(given, many);
    if (!found) {
        python.clear();
        python.keep(found = direct.none);
    }
    return found;
}
void end(PyObject* capsule) {
    auto* direct = (Direct*)python.held(capsule, CAPSULE);
    python.drop(direct->spec);
    delete direct;
}
struct Method {  // PyMethodDef
    const char* name;
    PyObject* (*function)(PyObject*, PyObject* const*, intptr_t);
    int flags;
    const char* doc;
} method = {"direct", called, FASTCALL, nullptr};
}  // namespace
// A function for calls like one: its buffers and lengths are at these addresses while `spec` lives.
extern "C" PyObject* prism_direct(const Python* functions, PyObject* spec, void (*run)(void* const*, const int64_t*, int),
                                  void* const* buffers, const int64_t* lengths, int threads) {
    python = *functions;
    auto* d = new Direct{spec};
    PyObject** const fields[] = {
        &d->none,           &d->yes,      &d->numpy,      &d->tensor,       &d->parameter, &d->names[0], &d->names[1],
        &d->names[2],       &d->names[3], &d->is_neg,     &d->is_contiguous, &d->data_ptr, &d->empty_like,
        &d->grad_enabled,   &d->nothing,  &d->dtypes,     &d->shapes,       &d->single,    &d->makers,
    };
    intptr_t at = 0;
    for (PyObject** field : fields) *field = python.item(spec, at++);
    d->inputs = (int)python.size(d->dtypes), d->outputs = (int)python.size(d->makers);
    d->buffers = (int)(intptr_t)python.number(python.item(spec, at));
    d->threads = threads, d->lengths = lengths, d->run = run;
    for (int n = 0; n < d->buffers; ++n) d->tensors[d->inputs + d->outputs + n] = buffers[n];
    python.keep(spec);
    PyObject* capsule = python.capsule(d, CAPSULE, end);
    PyObject* made = capsule ? python.function(&method, capsule, nullptr) : nullptr;
    if (capsule) python.drop(capsule);
    return made;
}
