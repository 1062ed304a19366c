"""The C++ that is compiled behind a Stan program: its model as six C functions, which `ctypes` calls."""

INCLUDES = r"""
#include <stan/io/json/json_data.hpp>
#include <stan/services/util/create_rng.hpp>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <sstream>
#include <thread>
"""

# Row by row and without Python: the threads of `provi_density` share the rows, and Stan's own state is one a thread.
INTERFACE = r"""
#define PROVI_EXPORT extern "C" __attribute__((visibility("default")))

namespace provi {
using Model = stan::model::model_base;

inline const Model& model_of(void* handle) { return *static_cast<Model*>(handle); }

inline void write_text(const std::string& text, char* buffer, int room) {
  const size_t length = std::min(text.size(), static_cast<size_t>(room - 1));
  std::memcpy(buffer, text.data(), length);
  buffer[length] = 0;
}

inline void prepare_thread() {
  static thread_local stan::math::ChainableStack tape;  // Stan's tape belongs to the thread that makes it
  (void)tape;
}

// No exception may pass into Python or XLA: it becomes the return value 1 and a message.
template <typename Work>
int guarded(char* message, int room, const Work& work) {
  prepare_thread();
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    write_text(error.what(), message, room);
  } catch (...) {
    write_text("unknown C++ exception", message, room);
  }
  return 1;
}

// The normalised log density with the Jacobian, and its gradient unless that is null.
inline double density(const Model& model, const double* z, int dim, double* gradient) {
  if (gradient == nullptr) {
    Eigen::VectorXd point = Eigen::Map<const Eigen::VectorXd>(z, dim);
    return model.log_prob_jacobian(point, nullptr);
  }
  stan::math::nested_rev_autodiff tape;
  Eigen::Matrix<stan::math::var, Eigen::Dynamic, 1> point = Eigen::Map<const Eigen::VectorXd>(z, dim);
  stan::math::var value = model.log_prob_jacobian(point, nullptr);
  value.grad();
  for (int i = 0; i < dim; ++i) gradient[i] = point(i).adj();
  return value.val();
}
}  // namespace provi

PROVI_EXPORT int provi_new(const char* data, unsigned int seed, void** handle, char* message, int room) {
  return provi::guarded(message, room, [&] {
    std::istringstream stream(data);
    stan::json::json_data context(stream);
    *handle = &new_model(context, seed, nullptr);
  });
}

PROVI_EXPORT void provi_delete(void* handle) { delete static_cast<provi::Model*>(handle); }

// Names as a text with a line each: of the free coordinates (depth -1), of the parameters (0), with the transformed
// parameters (1), with the generated quantities (2). Returns the room that the text needs.
PROVI_EXPORT int provi_names(void* handle, int depth, char* text, int room) {
  std::vector<std::string> names;
  if (depth < 0) provi::model_of(handle).unconstrained_param_names(names, false, false);
  else provi::model_of(handle).constrained_param_names(names, depth > 0, depth > 1);
  std::string lines;
  for (const std::string& name : names) lines += name + '\n';
  if (room > 0) provi::write_text(lines, text, room);
  return static_cast<int>(lines.size()) + 1;
}

// A row where Stan raises has the value -inf and a gradient of NaN; returns how many, with a message of one thread.
PROVI_EXPORT int provi_density(void* handle, const double* z, int rows, int dim, int threads, double* values,
                               double* gradients, char* message, int room) {
  std::atomic<int> next(0), failed(0);
  auto work = [&](char* reason, int length) {
    for (int row = next++; row < rows; row = next++) {
      const size_t first = static_cast<size_t>(row) * dim;
      double* gradient = gradients == nullptr ? nullptr : gradients + first;
      if (provi::guarded(reason, length, [&] {
            values[row] = provi::density(provi::model_of(handle), z + first, dim, gradient);
          })) {
        ++failed;
        values[row] = -std::numeric_limits<double>::infinity();
        if (gradient != nullptr) std::fill_n(gradient, dim, std::numeric_limits<double>::quiet_NaN());
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i)
    others.emplace_back([&] {
      char ignored[1];
      work(ignored, 1);
    });
  work(message, room);
  for (std::thread& other : others) other.join();
  return failed;
}

// Parameters, and more as `depth` says, in Stan's order; a row where Stan raises is NaN. Returns how many are.
PROVI_EXPORT int provi_constrain(void* handle, const double* z, int rows, int dim, int depth, unsigned int seed,
                                 int width, double* values, char* message, int room) {
  auto generator = stan::services::util::create_rng(seed, 1);
  int failed = 0;
  for (int row = 0; row < rows; ++row) {
    double* out = values + static_cast<size_t>(row) * width;
    if (provi::guarded(message, room, [&] {
          Eigen::VectorXd point = Eigen::Map<const Eigen::VectorXd>(z + static_cast<size_t>(row) * dim, dim), found;
          provi::model_of(handle).write_array(generator, point, found, depth > 0, depth > 1, nullptr);
          if (found.size() != width) throw std::length_error("the number of values is not that of the names");
          std::copy_n(found.data(), width, out);
        })) {
      ++failed;
      std::fill_n(out, width, std::numeric_limits<double>::quiet_NaN());
    }
  }
  return failed;
}

PROVI_EXPORT int provi_unconstrain(void* handle, const char* values, int dim, double* z, char* message, int room) {
  return provi::guarded(message, room, [&] {
    std::istringstream stream(values);
    stan::json::json_data context(stream);
    Eigen::VectorXd found;
    provi::model_of(handle).transform_inits(context, found, nullptr);
    if (found.size() != dim) throw std::length_error("the number of free coordinates is not the dimension");
    std::copy_n(found.data(), dim, z);
  });
}
"""
