"""What a network gains over its linearization: the test accuracy of both, from the same initialization."""

from trained import accuracy, initial, model, train, x_test, x_train, y_train

import torchtangent as tt

linearized = tt.linearize(initial)  # a module like any other: train it as you train the network
train(linearized)

K, K_test = tt.ntk(initial, x_train, reduce="trace"), tt.ntk(initial, x_test, x_train, reduce="trace")
regression = tt.predict.classify(K, y_train, K_test, ridge=1e-3)

print(f"network, trained by SGD                {accuracy(model(x_test).argmax(1)):.1%}")
print(f"linearized network, trained likewise   {accuracy(linearized(x_test).argmax(1)):.1%}")
print(f"regression with its kernel             {accuracy(regression):.1%}")
print(f"network, untrained                     {accuracy(initial(x_test).argmax(1)):.1%}")
